"""One stream on its way to one connection: its frames in order, as the window allows.

A sender belongs to a connection and dies with it; the stream doesn't notice but for the pace. It starts
behind any frame, sends each of what follows once, in its own epoch, and never more than the window lets it.
What the client has and its application hasn't taken goes through the window like the rest, only that it isn't
sent: else a reader that stands still would be given one window more with each cut. Nothing is read that isn't
durable, or needn't be.

Its task is for what has to wait. While it rests, having sent all there is, a new frame leaves in plain calls
from whoever publishes it, unless something is in its way: a wake-up for each token costs more than the rest.

It must not know how frames come about, nor other streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

import structlog
import trio
from attrs import evolve

from seedance_server.errors import OutboxClosed
from seedance_server.frame_source import FrameSource
from seedance_server.outbox import Outbox, frame_size
from seedance_server.tail import TailFrame, is_terminal
from seedance_wire.codec import make_codec
from seedance_wire.connection import MAX_MESSAGE_BYTES
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import Delta, Error, ErrorCode, Flow, FlowAction, Frame, Status
from seedance_wire.running_digest import PREFIX_BYTES
from seedance_wire.window import SlidingWindow

__all__ = ["Sender"]

_log = structlog.get_logger(__name__)

_WIDEST = "seedance.v1.json"
"""The encoding that takes most room; measured in it, a stream's fate doesn't depend on who reads it."""
_WIDENING = 7
"""No frame is larger than so many times `frame_size`: JSON writes a control character as six."""
_TOO_LARGE = "a piece of the answer is too large for one message"


class Sender:
    """Sends one stream from some frame on.

    Args:
        source: The stream's frames.
        outbox: Where they go.
        stream_id: The stream's number on this connection.
        epoch: Of the connection's hold on the session.
        after_id: The last frame that the client has.
        taken_id: The last that its application has taken, at most that; what lies between is read again.
        digest: Hash of the stream's text up to there, if it is known; taken over. Goes on until frames come
            that have one with them.
        on_sent: Called after each frame that was put into the outbox but the last, with its number and the
            digest of the text up to it if that is known.
        on_last: Called before the terminal frame is put: what is to be said of the stream is said now.
        on_first_written: Called once the stream's first frame has left for the socket.
        on_unsendable: Called with why, where a frame fits no message: the stream ends here with an ERROR.

    Attributes:
        is_known: Whether the client has said anything that shows that it knows of the stream.
    """

    def __init__(
        self,
        source: FrameSource,
        outbox: Outbox,
        *,
        stream_id: int,
        epoch: int,
        after_id: int,
        taken_id: int,
        digest: hashlib._Hash | None,
        on_sent: Callable[[int, bytes | None], None],
        on_last: Callable[[], None],
        on_first_written: Callable[[], None] | None = None,
        on_unsendable: Callable[[ErrorCode, str], None] | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.sent_id = taken_id
        self.is_known = after_id > 0
        self._source = source
        self._outbox = outbox
        self._epoch = epoch
        self._digest = digest
        self._on_sent = on_sent
        self._on_last = on_last
        self._on_first_written = on_first_written
        self._on_unsendable = on_unsendable
        self._after_id = after_id
        self._acknowledged_id = taken_id
        self._window = SlidingWindow()
        self._window_moved = trio.lowlevel.ParkingLot()
        self._last_windowed_id = taken_id
        self._resting = trio.lowlevel.ParkingLot()  # its task, while it has sent all there is
        self._is_done = False

    @property
    def window_size(self) -> int:
        """Frames that may be unacknowledged just now."""
        return self._window.size

    @property
    def in_flight(self) -> int:
        """Frames sent and not acknowledged."""
        return self._window.in_flight

    @property
    def room(self) -> int:
        """Frames that the window has room for now, fewer where it is filling up with bytes."""
        return self._window.room

    def note_flow(self, action: FlowAction) -> None:
        """Tells the client how fast its stream goes; that is for information, and never ends a connection."""
        if self._is_done:
            return
        with suppress(OutboxClosed):
            self._outbox.put_control(Flow(stream_id=self.stream_id, action=action, window=self._window.size))

    def note_status(self, status: Status) -> None:
        """Tells the client why there is no text yet; for information as well."""
        if self._is_done:
            return
        with suppress(OutboxClosed):
            self._outbox.put_control(status)

    def acknowledge(self, frame_id: int, now_s: float) -> None:
        """The client has processed everything up to ``frame_id``.

        Raises:
            RemoteProtocolError: That frame was never sent.
        """
        if frame_id > max(self.sent_id, self._after_id):
            raise RemoteProtocolError(
                f"frame {frame_id} of stream {self.stream_id} was acknowledged but never sent"
            )
        self.is_known = True
        self._acknowledged_id = max(self._acknowledged_id, frame_id)
        # A terminal frame that passed a full window isn't the window's business, nor what an earlier
        # connection sent.
        if self._window.in_flight:
            self._window.on_ack(min(frame_id, self._last_windowed_id), now_s)
        if self._window_moved:
            self._window_moved.unpark_all()

    async def run(self) -> None:
        """Sends until the terminal frame is in the outbox.

        Raises:
            OutboxClosed: The connection is closing.
            StreamTruncated, JournalError: As from `FrameSource.read`.
        """
        with self._source.heard_by(self._hear):
            while True:
                if self._source.is_read_out(self.sent_id):
                    await self._resting.park()
                    continue
                for read in await self._source.read(self.sent_id):
                    if read.frame.id <= self._after_id:
                        await self._count(read)
                        continue
                    entry = self._sendable(read)
                    await self._send(entry)
                    if is_terminal(entry.frame):
                        return

    def _hear(self) -> None:
        """There are newer frames. What is in their way, the task waits for."""
        if not self._resting:  # it is at work, or cancelled
            return
        for entry in self._source.at_hand(self.sent_id):
            if not self._send_at_once(entry):
                break
        if not self._source.is_read_out(self.sent_id):
            self._resting.unpark()

    def _send_at_once(self, entry: TailFrame) -> bool:
        frame = self._own(entry.frame)
        if (
            is_terminal(frame)
            or frame.id <= self._after_id
            or _WIDENING * entry.size > MAX_MESSAGE_BYTES
            or not self._window.can_send(entry.size)
            or not self._outbox.offer(frame, entry.size, self._on_written(frame))
        ):
            return False
        self._note_sent(entry)
        return True

    async def _count(self, entry: TailFrame) -> None:
        """Lets a frame that waits in the client fill the window, unless it is taken by now."""
        frame_id = entry.frame.id
        while frame_id > self._acknowledged_id and not self._window.can_send(entry.size):
            await self._window_moved.park()
        if frame_id > self._acknowledged_id:
            self._window.on_sent(frame_id, entry.size, trio.current_time())
        else:
            self._window.skip(frame_id)
        self._last_windowed_id = self.sent_id = frame_id

    def _sendable(self, entry: TailFrame) -> TailFrame:
        """The frame itself; or the stream's end, here, where it fits no message: it could never pass."""
        if _WIDENING * entry.size <= MAX_MESSAGE_BYTES or isinstance(entry.frame, Error):
            return entry
        size = len(make_codec(_WIDEST).encode([evolve(entry.frame, epoch=self._epoch)]))
        if size <= MAX_MESSAGE_BYTES:
            return entry
        _log.error("a frame is too large to be sent", frame_id=entry.frame.id, bytes=size)
        if self._on_unsendable is not None:
            self._on_unsendable(ErrorCode.INTERNAL, _TOO_LARGE)
        error = Error(
            stream_id=self.stream_id,
            id=entry.frame.id,
            epoch=self._epoch,
            offset=entry.frame.offset,
            code=ErrorCode.INTERNAL,
            message=_TOO_LARGE,
            retryable=False,
        )
        return TailFrame(error, None, frame_size(error), out_of_turn=True)

    async def _send(self, entry: TailFrame) -> None:
        frame = self._own(entry.frame)
        if not entry.out_of_turn:
            while not self._window.can_send(entry.size):
                await self._window_moved.park()
        if is_terminal(frame):
            self._is_done = True
            self._on_last()
        await self._outbox.put_frame(frame, self._on_written(frame))
        self._note_sent(entry)

    def _own(self, frame: Frame) -> Frame:
        """The frame as this connection says it."""
        if frame.stream_id == self.stream_id and frame.epoch == self._epoch:
            return frame
        return evolve(frame, stream_id=self.stream_id, epoch=self._epoch)

    def _on_written(self, frame: Frame) -> Callable[[], None] | None:
        return self._on_first_written if frame.id == 1 else None

    def _note_sent(self, entry: TailFrame) -> None:
        # This runs before anything could be read that answers the frame: a send and a receive lie between.
        frame_id = entry.frame.id
        if not entry.out_of_turn:
            self._window.on_sent(frame_id, entry.size, trio.current_time())
            self._last_windowed_id = frame_id
        self.sent_id = frame_id
        if not is_terminal(entry.frame):
            self._on_sent(frame_id, self._digest_after(entry))

    def _digest_after(self, entry: TailFrame) -> bytes | None:
        if self._digest is None or entry.digest is not None:
            self._digest = None  # behind by now; what comes from the tail has its own
            return entry.digest
        if isinstance(entry.frame, Delta):
            self._digest.update(entry.frame.text.encode())
        return self._digest.digest()[:PREFIX_BYTES]

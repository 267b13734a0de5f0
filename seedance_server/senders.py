"""The streams that are being sent over one connection, a sender each.

Whoever asks for a stream again gets a new sender for it, after the one before has stopped; so a stream is
never sent twice at once here. When the connection is over, each stream learns that it is not read here any
more, and one that was to end with the connection is cancelled.

It must not know requests, nor where a stream comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import structlog
import trio
from attrs import define, field
from structlog.contextvars import bind_contextvars

from seedance_server.checkpoints import Checkpoints
from seedance_server.errors import OutboxClosed
from seedance_server.frame_source import FrameSource
from seedance_server.journal.errors import JournalError, StreamTruncated
from seedance_server.outbox import Outbox
from seedance_server.sender import Sender
from seedance_server.stream import Stream
from seedance_wire.errors import CloseCode
from seedance_wire.messages import Ack, ErrorCode

__all__ = ["Senders"]

_log = structlog.get_logger(__name__)


@define(eq=False)
class _Sending:
    """A sender at work."""

    sender: Sender
    stream: Stream | None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    done: trio.Event = field(factory=trio.Event)


class Senders:
    """All senders of a connection.

    Args:
        nursery: Where they run; the peer owns it, and cancelling it ends them all.
        outbox: Where frames go.
        epoch: Under which the connection holds its session.
        checkpoints: Told of every frame that was sent.
        end: Closes the connection.
        on_done: Called whenever one has stopped.
    """

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        outbox: Outbox,
        epoch: int,
        checkpoints: Checkpoints,
        end: Callable[[CloseCode, str], None],
        on_done: Callable[[], None],
    ) -> None:
        self._nursery = nursery
        self._outbox = outbox
        self._epoch = epoch
        self._checkpoints = checkpoints
        self._end = end
        self._on_done = on_done
        self._sendings: dict[int, _Sending] = {}
        self._early: dict[int, int] = {}  # acknowledged while the stream is looked for
        self._is_over = False

    def __len__(self) -> int:
        return len(self._sendings)

    @property
    def is_over(self) -> bool:
        """Whether the connection is: nothing can be sent any more."""
        return self._is_over

    def send(
        self,
        stream_id: int,
        source: FrameSource,
        stream: Stream | None,
        *,
        after_id: int = 0,
        taken_id: int = 0,
        digest: hashlib._Hash | None = None,
    ) -> None:
        """Sends a stream from behind a frame on.

        Args:
            stream_id: Its number.
            source: Its frames.
            stream: Its producer, while it isn't ended.
            after_id: The last frame that the client has.
            taken_id: The last that its application has taken, of those that can still be read.
            digest: Hash of its text up to the client's last frame, if that is known; taken over.

        Raises:
            RemoteProtocolError: Meanwhile a frame was acknowledged that the client hasn't got.
        """
        sender = Sender(
            source,
            self._outbox,
            stream_id=stream_id,
            epoch=self._epoch,
            after_id=after_id,
            taken_id=taken_id,
            digest=hashlib.sha256() if after_id == 0 else digest,
            on_sent=partial(self._note_sent, stream, stream_id),
            on_last=partial(self._checkpoints.push, stream_id),
            on_first_written=None if stream is None else stream.note_first_written,
            on_unsendable=None if stream is None else partial(stream.fail, retryable=False),
        )
        sending = self._sendings[stream_id] = _Sending(sender, stream)
        acknowledged_id = self._early.pop(stream_id, 0)
        if stream is not None:
            stream.add_reader(sender)
        self._nursery.start_soon(self._run, stream_id, sending)
        if acknowledged_id:
            sender.acknowledge(acknowledged_id, trio.current_time())

    def _note_sent(self, stream: Stream | None, stream_id: int, frame_id: int, digest: bytes | None) -> None:
        if stream is None or stream.is_durable:
            self._checkpoints.note_frame(stream_id, frame_id, digest)

    async def _run(self, stream_id: int, sending: _Sending) -> None:
        bind_contextvars(stream_id=stream_id)  # beside what the message's task has bound
        try:
            with sending.scope:
                await sending.sender.run()
        except OutboxClosed:
            self._is_over = True
        except StreamTruncated:
            self._end(CloseCode.JOURNAL_GONE, f"frames of stream {stream_id} were deleted while being read")
        except JournalError as error:
            _log.warning("journal can't be read", reason=str(error))
            self._end(CloseCode.FENCED, "the journal failed: come back")
        finally:
            if self._sendings.get(stream_id) is sending:
                del self._sendings[stream_id]
            if sending.stream is not None:
                sending.stream.remove_reader(sending.sender)
                self._note_unread(sending.stream)
            sending.done.set()
            self._on_done()

    def _note_unread(self, stream: Stream) -> None:
        """A stream isn't sent here any more before its end: was that the connection's end?"""
        if self._is_over and stream.cancel_on_disconnect:
            stream.cancel()

    def acknowledge(self, ack: Ack) -> None:
        """Moves the windows of the streams named.

        Raises:
            RemoteProtocolError: A frame never was sent.
        """
        now_s = trio.current_time()
        for stream_id, frame_id in ack.processed:
            if stream_id in self._early:
                self._early[stream_id] = max(self._early[stream_id], frame_id)
            elif (sending := self._sendings.get(stream_id)) is not None:
                sending.sender.acknowledge(frame_id, now_s)
                if sending.stream is not None:
                    sending.stream.note_progress()

    def discontinue(self, stream_id: int) -> None:
        """Stops sending a stream, if it is being sent; an ACK from here is for who sends it next."""
        self._early[stream_id] = 0
        if (sending := self._sendings.get(stream_id)) is not None:
            sending.scope.cancel()

    def give_up(self, stream_id: int) -> None:
        """A stream that was discontinued is not going to be sent again."""
        self._early.pop(stream_id, None)

    async def stopped(self, stream_id: int) -> None:
        """Waits until a stream isn't being sent."""
        while (sending := self._sendings.get(stream_id)) is not None:
            await sending.done.wait()

    def leave(self, code: ErrorCode, message: str) -> None:
        """The server goes: what lives with the connection ends with an error, the rest stays as it is."""
        for sending in tuple(self._sendings.values()):
            if sending.stream is not None and not sending.stream.is_durable:
                sending.stream.fail(code, message)
            else:
                sending.scope.cancel()

    def disown(self, stream: Stream) -> None:
        """A stream began that nobody can be told of, since the connection was over by then."""
        stream.forgo_grace()
        if stream.cancel_on_disconnect:
            stream.cancel()

    def forgo_grace(self) -> None:
        """The client says that it is done: streams that it may not know of wait, without anybody, at once."""
        for sending in self._sendings.values():
            if sending.stream is not None and not sending.sender.is_known:
                sending.stream.forgo_grace()

    def close(self) -> None:
        """The connection is over. Safe to repeat."""
        self._is_over = True
        for sending in self._sendings.values():
            sending.scope.cancel()

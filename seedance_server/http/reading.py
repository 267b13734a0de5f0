"""One choice of an answer on its way to one HTTP client: its frames in order, at the client's pace.

HTTP has no acknowledgements, so what a client has is what its socket took: a frame fills the window from the
moment that it is about to be sent until the send is over. A client that doesn't read makes the send wait, the
window fills up, and the stream stands as it does for a WebSocket.

It must not know encodings or sockets.
"""

from __future__ import annotations

import trio

from seedance_server.frame_source import FrameSource
from seedance_server.http.shapes import Choice
from seedance_server.stream import Stream
from seedance_server.tail import TailFrame, is_terminal
from seedance_wire.messages import Delta, Error, FlowAction, Flush, Frame, Status
from seedance_wire.window import SlidingWindow

__all__ = ["Reading"]


class Reading:
    """Reads one choice.

    Args:
        index: Which.
        source: Its frames.
        stream: Its producer, while it isn't ended; it has this reader from now on.
        after_id: The last frame that the client has.
        gathers: Whether the whole answer is wanted: then what it says is kept.

    Attributes:
        choice: What came of it.
        sent_id: The last frame that was taken for sending.
        is_done: Whether the last one of all has been.
    """

    def __init__(
        self, index: int, source: FrameSource, stream: Stream | None, after_id: int, *, gathers: bool
    ) -> None:
        self.index = index
        self.choice = Choice()
        self.sent_id = after_id
        self.is_done = False
        self._source = source
        self._stream = stream
        self._gathers = gathers
        self._window = SlidingWindow()
        self._has_sent_first = False
        if stream is not None:
            stream.add_reader(self)

    # ---- asked by the stream's pace

    @property
    def window_size(self) -> int:
        """Frames that may be on their way."""
        return self._window.size

    @property
    def room(self) -> int:
        """Frames that may go on their way now."""
        return self._window.room

    def note_flow(self, action: FlowAction) -> None:
        """The stream's pace has changed; HTTP has no word for it."""

    def note_status(self, status: Status) -> None:
        """There is news of why it has no text yet; likewise."""

    # ---- its own

    @property
    def is_durable(self) -> bool:
        """Whether it can be read again."""
        return self._stream is None or self._stream.is_durable

    async def next_frames(self) -> list[Frame]:
        """Waits for frames; they count as on their way until `taken`.

        Raises:
            StreamTruncated, JournalError: As from `FrameSource.read`.
        """
        frames: list[Frame] = []
        for entry in await self._source.read(self.sent_id):
            if not self._window.can_send(entry.size):
                break
            frames.append(self._take(entry))
        return frames

    def _take(self, entry: TailFrame) -> Frame:
        frame = entry.frame
        self.sent_id = frame.id
        self._window.on_sent(frame.id, entry.size, trio.current_time())
        self._has_sent_first |= frame.id == 1
        if isinstance(frame, Delta):
            if self._gathers:
                self._note_text(frame)
        elif isinstance(frame, Error):
            self.choice.error = frame
        elif isinstance(frame, Flush):
            self.choice.final = frame.final
        self.is_done = is_terminal(frame)
        return frame

    def _note_text(self, frame: Delta) -> None:
        self.choice.text.append(frame.text)
        self.choice.logprobs += [(frame.offset, entry) for entry in frame.logprobs]

    def taken(self) -> None:
        """The client's socket has what `next_frames` gave."""
        self._window.on_ack(self.sent_id, trio.current_time())
        if self._stream is not None:
            if self._has_sent_first:
                self._stream.note_first_written()
            self._stream.note_progress()

    async def read_end(self) -> None:
        """Learns how a choice ended whose end the client has already.

        Raises:
            StreamTruncated, JournalError: As from `FrameSource.read`.
        """
        self.sent_id -= 1
        await self.read_out()

    async def read_out(self) -> None:
        """Reads up to the end, for a client that waits for all of it.

        Raises:
            StreamTruncated, JournalError: As from `FrameSource.read`.
        """
        while not self.is_done:
            await self.next_frames()
            self.taken()

    def close(self, *, cancel: bool) -> None:
        """Reads no more. Safe to repeat.

        Args:
            cancel: Whether nobody can ever ask for the rest.
        """
        if self._stream is None:
            return
        self._stream.remove_reader(self)
        if not self.is_done and (cancel or self._stream.cancel_on_disconnect):
            self._stream.cancel()

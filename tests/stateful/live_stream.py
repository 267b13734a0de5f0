"""A stream on the node that owns it: what it generates, what of that is durable, and who reads it.

The producer makes frames, which wait in `pending` until a commit; the tail holds the newest committed ones.
Readers take from the journal until they reach the tail, then from the tail: replay and live are one path.
"""

from __future__ import annotations

import hashlib
from collections import deque

from attrs import Factory, define, evolve

from seedance_server.journal.records import FrameRecord, StoredStream
from seedance_wire.messages import Delta, Error, Final, FinishReason, Flush, Frame, StageTiming, Usage
from seedance_wire.stored_form import dump_frame, load_frame
from seedance_wire.window import SlidingWindow

__all__ = ["KEPT_FRAMES", "LiveStream", "Reader", "frame_record", "is_terminal"]

KEPT_FRAMES = 3
"""Of the tail: few, so that readers cross from the journal to it often."""


def is_terminal(frame: Frame) -> bool:
    """Whether nothing follows it."""
    return isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)


def frame_record(frame: Frame) -> FrameRecord:
    """The frame as the journal keeps it."""
    size = len(frame.text.encode()) if isinstance(frame, Delta) else 0
    return FrameRecord(id=frame.id, kind=1, offset=frame.offset, size=size, payload=dump_frame(frame))


@define(eq=False)
class LiveStream:
    """A stream that this node generates, or that it has loaded to go on with.

    Attributes:
        id: Its number.
        text: All of it, pending frames included.
        generated: Id of the newest frame made.
        committed: Id of the newest frame that is durable.
        pending: Made and not durable, in order.
        tail: The newest durable frames.
        ended: Its last frame was made.
        paused: It may not be generated: its reader's window is full.
        started: Whether this node runs it; a stream that was only found waits for a RESUME.
    """

    id: int
    text: str = ""
    generated: int = 0
    committed: int = 0
    pending: list[Frame] = Factory(list)
    tail: deque[Frame] = Factory(lambda: deque(maxlen=KEPT_FRAMES))
    ended: bool = False
    paused: bool = False
    started: bool = True

    @classmethod
    def taken_over(cls, stored: StoredStream, frames: list[Frame], *, ended: bool) -> LiveStream:
        """A stream as its journal has it; it goes on at the next frame."""
        text = "".join(frame.text for frame in frames if isinstance(frame, Delta))
        last_id = stored.record.last_id
        return cls(stored.record.stream_id, text, last_id, last_id, ended=ended, started=False)

    def make(self, text: str, epoch: int) -> None:
        """Generates one DELTA, or an empty FLUSH that ends a segment."""
        numbers = self._numbers(epoch)
        self._add(Delta(**numbers, text=text) if text else Flush(**numbers))

    def finish(self, reason: FinishReason, epoch: int) -> None:
        """Generates the end."""
        usage = Usage(prompt_tokens=1, completion_tokens=self.generated)
        digest = hashlib.sha256(self.text.encode()).digest()
        final = Final(finish_reason=reason, usage=usage, timing=StageTiming(), digest=digest)
        self._add(Flush(**self._numbers(epoch), final=final))

    def _numbers(self, epoch: int) -> dict[str, int]:
        offset = len(self.text.encode())
        return {"stream_id": self.id, "id": self.generated + 1, "epoch": epoch, "offset": offset}

    def _add(self, frame: Frame) -> None:
        assert not self.ended
        self.pending.append(frame)
        self.generated = frame.id
        self.ended = is_terminal(frame)
        if isinstance(frame, Delta):
            self.text += frame.text

    def commit_done(self) -> None:
        """What was pending is durable now."""
        self.tail.extend(self.pending)
        self.committed = self.generated
        self.pending = []

    @property
    def tail_start(self) -> int:
        """The oldest frame of the tail; one above `committed` if there is none."""
        return self.committed + 1 - len(self.tail)

    def tail_after(self, frame_id: int) -> list[Frame]:
        """Frames of the tail above ``frame_id``, which the tail reaches back to."""
        return [frame for frame in self.tail if frame.id > frame_id]


@define(eq=False)
class Reader:
    """One connection's way through one stream.

    Attributes:
        stream_id: The stream.
        next_id: The frame to be sent next; up to `client_has` it is only counted.
        window: What may be on its way.
        began_after: What the application had taken when this began.
        client_has: What its client had.
        taken: The last frame that was acknowledged.
        widest: The window, when it was widest.
        ended: The last frame was sent.
    """

    stream_id: int
    next_id: int
    window: SlidingWindow
    began_after: int
    client_has: int
    taken: int = 0
    widest: int = 32
    ended: bool = False

    @property
    def acknowledged(self) -> int:
        """The last frame that the window counts as taken."""
        return self.next_id - 1 - self.window.in_flight

    @classmethod
    def after(cls, stream_id: int, last_id: int, taken_id: int | None = None) -> Reader:
        """A reader for a client that has everything up to ``last_id``, of which ``taken_id`` is taken."""
        start = last_id if taken_id is None else min(taken_id, last_id)
        return cls(stream_id, start + 1, SlidingWindow(start), start, last_id)

    @property
    def most_held(self) -> int:
        """What may wait in the client: what did when this began, or a window, whichever is more."""
        return max(self.client_has - self.began_after, self.widest)


def of_epoch(record: FrameRecord, epoch: int) -> Frame:
    """A frame from the journal, to be sent by the owner of now."""
    return load_frame(record.payload, epoch=epoch)


def of_reader(frame: Frame, reader: Reader, epoch: int) -> Frame:
    """A frame as its reader knows the stream, which may have had another number when it was written."""
    return evolve(frame, stream_id=reader.stream_id, epoch=epoch)

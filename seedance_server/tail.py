"""The newest frames of a live stream, in memory: what its readers are given without asking the journal.

A frame is put here only after the commit that holds it, so whatever can be read here may be sent. The tail is
bounded: what falls off its old end is in the journal, by the same number. A stream without durability has no
other copy; there the one reader paces the producer, so nothing falls off that hasn't been read.

It must not know readers, windows or how a frame came about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import trio
from attrs import frozen

from seedance_wire.messages import Error, Flush, Frame

__all__ = ["FrameTail", "TailFrame", "is_terminal"]


def is_terminal(frame: Frame) -> bool:
    """Whether nothing follows this frame."""
    return isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)


@frozen
class TailFrame:
    """One frame with what its readers need to know.

    Attributes:
        frame: The frame; its epoch means nothing here, whoever sends it puts in its own.
        digest: First 16 bytes of the SHA-256 of the stream's text up to here; None if that isn't known.
        size: Bytes, by the caller's measure.
        out_of_turn: It may pass a full window: it ends a stream that was ended from outside, and a client
            that has stopped reading could never be told otherwise.
    """

    frame: Frame
    digest: bytes | None
    size: int
    out_of_turn: bool = False


class FrameTail:
    """Consecutive frames, oldest dropped first.

    Args:
        last_id: The newest frame that is in the journal already.
        keep_bytes: Kept in memory beyond the newest frame.
    """

    def __init__(self, last_id: int, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._frames: deque[TailFrame] = deque()
        self._bytes = 0
        self._last_id = last_id
        self._news = trio.lowlevel.ParkingLot()
        self._hearers: list[Callable[[], None]] = []
        self._is_ended = False

    @property
    def last_id(self) -> int:
        """The newest frame; it and all before it may be read, here or in the journal."""
        return self._last_id

    @property
    def first_id(self) -> int:
        """The oldest frame that is here; one above `last_id` if none is."""
        return self._last_id + 1 - len(self._frames)

    @property
    def is_ended(self) -> bool:
        """Whether the newest frame is the stream's last."""
        return self._is_ended

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames that are here."""
        return self._bytes

    def publish(self, frames: Iterable[TailFrame], *, unread_from: int | None = None) -> None:
        """Adds frames that may be sent, the next ones in order, and tells who waits for them.

        Args:
            frames: The frames.
            unread_from: Where there is no journal behind: the first frame that must not be dropped.
        """
        for entry in frames:
            assert entry.frame.id == self._last_id + 1, "frames are published in order"  # noqa: S101
            assert not self._is_ended, "nothing follows the terminal frame"  # noqa: S101
            self._frames.append(entry)
            self._bytes += entry.size
            self._last_id = entry.frame.id
            self._is_ended = is_terminal(entry.frame)
        keep_id = self._last_id if unread_from is None else min(unread_from, self._last_id)
        while self._bytes > self._keep_bytes and self.first_id < keep_id:
            self._bytes -= self._frames.popleft().size
        for hear in self._hearers:
            hear()
        if self._news:
            self._news.unpark_all()

    def after(self, frame_id: int) -> tuple[TailFrame, ...]:
        """The frames above ``frame_id``; none if there are none, or if the next one isn't here any more."""
        start = frame_id + 1 - self.first_id
        if start < 0 or frame_id >= self._last_id:
            return ()
        return tuple(self._frames[index] for index in range(start, len(self._frames)))

    async def wait_beyond(self, frame_id: int) -> None:
        """Waits until there is a frame above ``frame_id``."""
        while self._last_id <= frame_id:
            await self._news.park()

    @contextmanager
    def heard_by(self, hear: Callable[[], None]) -> Iterator[None]:
        """Within the block ``hear`` is called whenever there are more frames; it must not fail."""
        self._hearers = [*self._hearers, hear]
        try:
            yield
        finally:
            self._hearers = [each for each in self._hearers if each != hear]

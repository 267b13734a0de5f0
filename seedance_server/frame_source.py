"""One stream's frames in order, from wherever they are: the reason why replay and live are one path.

A reader says what it has and gets what comes next: from the tail while it is close behind, from the journal's
pages while it isn't, and it waits where there is nothing newer. Since a frame is in the journal before it is
in the tail, and both go by the frame's number, there is no hand-over between them that could leave a gap or
say something twice.

It must not know connections, windows or who produces.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from seedance_server.journal.errors import StreamTruncated
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import FrameRecord, StreamRecord, StreamState
from seedance_server.outbox import frame_size
from seedance_server.tail import FrameTail, TailFrame
from seedance_wire.messages import Delta, Error, ErrorCode, Frame
from seedance_wire.stored_form import load_frame

__all__ = ["FrameSource", "read_text", "text_hash"]

PAGE_FRAMES = 64
"""Frames read at once: half of the widest window, so that a replay is ahead of its reader but not by much."""


class FrameSource:
    """Reads one stream.

    Args:
        journal: Where frames are kept; None for a stream that has only its tail.
        session_id: The session in whose name the journal has it.
        stream_id: Its number there.
        tail: The newest frames, of a stream that is being produced in this process.
    """

    def __init__(
        self, journal: Journal | None, session_id: str, stream_id: int, tail: FrameTail | None
    ) -> None:
        self._journal = journal
        self._session_id = session_id
        self._stream_id = stream_id
        self._tail = tail

    def heard_by(self, hear: Callable[[], None]) -> AbstractContextManager[None]:
        """See `FrameTail.heard_by`; of a stream that isn't produced here nothing is heard."""
        return nullcontext() if self._tail is None else self._tail.heard_by(hear)

    def is_read_out(self, after_id: int) -> bool:
        """Whether nothing is above ``after_id`` yet."""
        return self._tail is not None and after_id >= self._tail.last_id

    def at_hand(self, after_id: int) -> Sequence[TailFrame]:
        """What `read` would return without waiting for anything, the journal included."""
        return () if self._tail is None else self._tail.after(after_id)

    async def read(self, after_id: int) -> Sequence[TailFrame]:
        """Waits for frames above ``after_id``; returns the next one and any number of those that follow it.

        Raises:
            StreamTruncated: The next one was deleted meanwhile.
            JournalError: The journal can't be read.

        If cancelled, nothing was lost: ask again.
        """
        tail = self._tail
        while True:
            if tail is not None:
                if frames := tail.after(after_id):
                    return frames
                if after_id >= tail.last_id:
                    await tail.wait_beyond(after_id)
                    continue
            if self._journal is None:
                assert tail is not None  # noqa: S101 - one of the two there is
                raise StreamTruncated(self._stream_id, tail.first_id, tail.last_id)
            page = await self._journal.read_frames(self._session_id, self._stream_id, after_id, PAGE_FRAMES)
            if page.frames:
                return [_from_record(record) for record in page.frames]
            if page.record.state is StreamState.ABANDONED:
                return [_abandonment(page.record)]
            raise StreamTruncated(self._stream_id, page.record.first_available_id, page.record.last_id)


def _from_record(record: FrameRecord) -> TailFrame:
    frame = load_frame(record.payload, epoch=1)
    return TailFrame(frame, None, frame_size(frame))


def _abandonment(record: StreamRecord) -> TailFrame:
    """The end of a stream that was given up. It isn't written but follows from what is: always the same."""
    frame: Frame = Error(
        stream_id=record.stream_id,
        id=record.next_frame_id,
        epoch=1,
        offset=record.text_bytes,
        code=ErrorCode.ABANDONED,
        message="the stream was given up: its client didn't come back in time",
        retryable=True,
    )
    return TailFrame(frame, None, frame_size(frame))


async def text_hash(journal: Journal, session_id: str, stream_id: int, through_id: int) -> hashlib._Hash:
    """Hashes a stream's text up to the end of frame ``through_id``.

    Raises:
        StreamTruncated: Its first frames were deleted.
        JournalError: The journal can't be read.
    """
    digest = hashlib.sha256()
    async for frame in _frames(journal, session_id, stream_id, through_id):
        if isinstance(frame, Delta):
            digest.update(frame.text.encode())
    return digest


async def read_text(journal: Journal, session_id: str, stream_id: int, through_id: int) -> tuple[str, int]:
    """Reads a stream's text up to the end of frame ``through_id``, and where its last segment begins.

    Raises:
        StreamTruncated, JournalError: As in `text_hash`.
    """
    pieces: list[str] = []
    segment_start = 0
    async for frame in _frames(journal, session_id, stream_id, through_id):
        if isinstance(frame, Delta):
            pieces.append(frame.text)
        else:
            segment_start = frame.offset
    return "".join(pieces), segment_start


async def _frames(journal: Journal, session_id: str, stream_id: int, through_id: int) -> AsyncIterator[Frame]:
    read_id = 0
    while read_id < through_id:
        limit = min(PAGE_FRAMES, through_id - read_id)
        page = await journal.read_frames(session_id, stream_id, read_id, limit)
        if not page.frames:
            return
        for record in page.frames:
            yield load_frame(record.payload, epoch=1)
        read_id = page.frames[-1].id

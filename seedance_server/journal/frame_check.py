"""Whether frames that are to be appended together follow each other; storage checks what precedes them."""

from __future__ import annotations

from collections.abc import Sequence

from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.records import FrameRecord

__all__ = ["check_frames"]


def check_frames(frames: Sequence[FrameRecord], limits: JournalLimits) -> None:
    """Checks that ``frames`` may be one append.

    Raises:
        ValueError: There are none or too many, one is too large, or they don't follow each other.
    """
    if not 1 <= len(frames) <= limits.commit_rows:
        raise ValueError(f"from 1 to {limits.commit_rows} frames at once, not {len(frames)}")
    before: FrameRecord | None = None
    for frame in frames:
        if len(frame.payload) > limits.max_frame_bytes:
            most = limits.max_frame_bytes
            raise ValueError(f"a frame's payload has at most {most} bytes, not {len(frame.payload)}")
        if before is not None and (frame.id != before.id + 1 or frame.offset != before.offset + before.size):
            raise ValueError(f"frame {frame.id} at {frame.offset} doesn't follow frame {before.id}")
        before = frame

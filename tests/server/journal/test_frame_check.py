"""Frames that are appended together follow each other and are within the bounds."""

from __future__ import annotations

import pytest
from attrs import evolve

from seedance_server.journal.frame_check import check_frames
from tests.server.journal.journal_made import LIMITS, frames_from

ONE, TWO, THREE = frames_from(1, 0, 2, 3, 4)


@pytest.mark.parametrize(
    "frames",
    [[], [ONE, THREE], [TWO, ONE], [ONE, evolve(TWO, offset=3)], [ONE] * 2],
    ids=["none", "hole", "backwards", "offset", "twice"],
)
def test_frames_that_do_not_follow_are_refused(frames):
    """A hole inside one append would pass a check of its first frame alone."""
    with pytest.raises(ValueError, match="frame"):
        check_frames(frames, LIMITS)


def test_frames_are_bounded():
    """Neither many frames nor a large one may fill a commit beyond its limits."""
    limits = evolve(LIMITS, commit_rows=2, max_frame_bytes=3)
    check_frames([ONE, TWO], limits)
    with pytest.raises(ValueError, match="not 3"):
        check_frames([ONE, TWO, THREE], limits)
    with pytest.raises(ValueError, match="at most 3 bytes"):
        check_frames([THREE], limits)

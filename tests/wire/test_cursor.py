"""The apply rule."""

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.cursor import ReceiveCursor, Verdict


@frozen
class Numbers:
    """A frame as the rule sees it."""

    id: int
    epoch: int
    offset: int


@pytest.mark.parametrize(
    ("frame", "verdict"),
    [
        (Numbers(5, 3, 40), Verdict.APPLY),
        (Numbers(5, 4, 40), Verdict.APPLY),
        (Numbers(4, 3, 30), Verdict.DUPLICATE),
        (Numbers(1, 3, 0), Verdict.DUPLICATE),
        (Numbers(5, 2, 40), Verdict.STALE),
        (Numbers(4, 2, 30), Verdict.STALE),
        (Numbers(6, 3, 40), Verdict.GAP),
        (Numbers(5, 3, 41), Verdict.GAP),
        (Numbers(5, 3, 39), Verdict.GAP),
    ],
)
def test_cursor_judges_by_epoch_then_id_then_offset(frame: Numbers, verdict: Verdict) -> None:
    """A former owner's frame and a duplicate are dropped; only the next id at the next byte is applied."""
    assert ReceiveCursor(epoch=3, applied=4, applied_bytes=40).judge(frame) is verdict


@given(st.lists(st.integers(0, 9), max_size=12), st.data())
def test_cursor_applies_each_frame_once_when_frames_repeat(sizes: list[int], data: st.DataObject) -> None:
    """However often and in whatever order frames arrive, each is applied at most once and in order."""
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    sent = [Numbers(index + 1, 1, offset) for index, offset in enumerate(offsets)]
    arrivals = data.draw(st.lists(st.sampled_from(sent), max_size=40)) if sent else []
    cursor = ReceiveCursor(epoch=1)
    applied = []
    for frame in [*arrivals, *sent]:
        if cursor.judge(frame) is Verdict.APPLY:
            cursor = cursor.after(frame, sizes[frame.id - 1])
            applied.append(frame)
    assert applied == sent
    assert (cursor.applied, cursor.applied_bytes) == (len(sizes), sum(sizes))


def test_cursor_takes_the_epoch_of_a_newer_owner() -> None:
    """Once a newer owner has written, the former one is stale."""
    cursor = ReceiveCursor(epoch=1).after(Numbers(1, 2, 0), 3)
    assert cursor == ReceiveCursor(epoch=2, applied=1, applied_bytes=3)
    assert cursor.judge(Numbers(2, 1, 3)) is Verdict.STALE


def test_cursor_says_what_does_not_fit_about_a_frame() -> None:
    """Whoever reads the log sees both numberings."""
    told = ReceiveCursor(epoch=3, applied=4, applied_bytes=40).misfit(Numbers(7, 2, 55), 9)
    assert told == "stream 9: frame 7 of epoch 2 at offset 55, after frame 4 of epoch 3 and 40 bytes"

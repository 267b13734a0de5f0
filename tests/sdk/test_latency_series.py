"""What is counted of one kind of answers, and how it is summed up."""

from __future__ import annotations

import threading

import pytest

from seedance_sdk.latency_series import LatencySeries, Outcome


def series() -> LatencySeries:
    return LatencySeries(threading.RLock())


def test_histogram_has_counts_and_cumulative_shares() -> None:
    """S34: [0, 5), [5, 20), … and the last bucket without an end."""
    gaps = series()
    gaps.first(1.0, 1)
    for gap_s in (0.001, 0.005, 0.019, 0.150, 3.0):
        gaps.next(gap_s, 1)
    gaps.next(0.010, 4)
    histogram = gaps.figures().histogram
    assert [(bucket.from_ms, bucket.below_ms) for bucket in histogram][:2] == [(0, 5), (5, 20)]
    assert histogram[-1].below_ms is None
    assert [bucket.count for bucket in histogram] == [4, 3, 0, 0, 1, 0, 0, 1]
    assert [bucket.share for bucket in histogram] == pytest.approx([4 / 9, *[7 / 9] * 3, *[8 / 9] * 3, 1])


def test_histogram_of_nothing_has_no_shares() -> None:
    """No tokens are no zero percent of anything, and no division by it."""
    assert {bucket.share for bucket in series().figures().histogram} == {0}


def test_error_rate_is_of_those_that_finished_or_failed() -> None:
    """Whoever cancels an answer says nothing about the server."""
    counted = series()
    for outcome, times in ((Outcome.FINISHED, 3), (Outcome.FAILED, 1), (Outcome.CANCELLED, 5)):
        for _ in range(times):
            counted.ended(outcome)
    figures = counted.figures()
    assert (figures.finished, figures.failed, figures.cancelled) == (3, 1, 5)
    assert figures.error_rate == 0.25
    assert series().figures().error_rate == 0


def test_merging_adds_everything_and_leaves_the_other_alone() -> None:
    """Figures of all endpoints together are those of one that had all their answers."""
    one, other, both = series(), series(), series()
    for target in (one, both):
        target.first(0.2, 2)
        target.next(0.1, 1)
        target.ended(Outcome.FINISHED, 0.3, 0.05)
    for target in (other, both):
        target.first(0.4, 1)
        target.interrupted()
        target.restored(3.0)
        target.late(7)
        target.ended(Outcome.FAILED)
    before = other.figures()
    one.merge(other)
    assert one.figures() == both.figures()
    assert other.figures() == before


def test_summing_up_changes_nothing() -> None:
    """Asked twice, it says the same."""
    counted = series()
    counted.first(0.2, 5)
    counted.next(0.1, 3)
    assert counted.figures() == counted.figures()

"""S33: the mean change among the last five round trips, its alert, and the period that it marks."""

from __future__ import annotations

import pytest

from seedance_sdk.jitter import JitterMeter


def test_jitter_is_the_mean_change_among_the_last_five_round_trips() -> None:
    """Older ones are forgotten: an old jump says nothing of now."""
    meter = JitterMeter("ws://a")
    assert meter.jitter_s is None
    for round_trip_s in (0.500, 0.010, 0.012, 0.010):
        meter.add(round_trip_s, 0)
    assert meter.jitter_s == pytest.approx((0.490 + 0.002 + 0.002) / 3)
    for round_trip_s in (0.012, 0.010):
        meter.add(round_trip_s, 0)
    assert meter.jitter_s == pytest.approx(0.002)


def test_first_round_trip_is_no_jitter() -> None:
    """There is nothing that it differs from."""
    meter = JitterMeter("ws://a")
    assert meter.add(3.0, 0) is None
    assert meter.figures().jitter_ms is None


def test_jitter_over_the_threshold_raises_one_alert_and_marks_the_period() -> None:
    """From the round trip that raises the mean until the one that brings it back."""
    meter = JitterMeter("ws://a")
    meter.add(0.010, 1)
    begun = meter.add(0.040, 2)
    assert begun is not None
    assert (begun.url, begun.began_s, begun.ended_s) == ("ws://a", 2, None)
    assert meter.add(0.110, 3) is None
    assert meter.figures().periods[0].peak_ms == pytest.approx(50)
    for second in range(4, 9):
        meter.add(0.110, second)
    (period,) = meter.figures().periods
    assert meter.figures().alerts == 1
    assert (period.began_s, period.ended_s) == (2, 7)
    assert meter.add(0.310, 9) is not None
    assert meter.figures().alerts == 2


def test_jitter_at_the_threshold_is_no_alert() -> None:
    """Over 15 ms, not at it."""
    meter = JitterMeter("ws://a", alert_s=0.25)
    meter.add(1.0, 0)
    assert meter.add(1.25, 1) is None
    assert meter.add(1.75, 2) is not None


def test_a_new_connection_is_compared_with_no_earlier_one() -> None:
    """It may take another path: a difference between two paths is no jitter. A period ends with its path."""
    meter = JitterMeter("ws://a")
    meter.add(0.010, 1)
    meter.add(0.100, 2)
    meter.forget(3)
    assert meter.jitter_s is None
    assert meter.figures().periods[0].ended_s == 3
    assert meter.add(0.500, 4) is None


def test_marked_periods_are_bounded() -> None:
    """The newest 32 are kept; all are counted."""
    meter = JitterMeter("ws://a")
    for second in range(100):
        meter.add(0.0, second)
        meter.add(1.0, second)
        meter.forget(second)
    figures = meter.figures()
    assert (figures.alerts, len(figures.periods), figures.periods[-1].began_s) == (100, 32, 99)

"""Tests of `seedance_server.decision_times`."""

import pytest

from seedance_server.decision_times import DecisionTimes


def test_decision_times_keep_the_running_step_apart() -> None:
    """The wait for a forward pass is no fault of the server's; what follows is, or all where none ran."""
    times = DecisionTimes()
    times.add(asked_s=10.0, free_s=10.2, decided_s=10.201)
    times.add(asked_s=20.0, free_s=11.0, decided_s=20.004)
    measured = times.statistics()
    assert measured.count == 2
    assert (measured.p50_s, measured.p99_s, measured.max_s) == pytest.approx((0.001, 0.004, 0.004))
    assert (measured.step_p50_s, measured.step_p99_s) == pytest.approx((0.0, 0.2))


def test_decision_times_report_values_that_occurred() -> None:
    """Nearest rank: of a hundred, the 99th; of none, 0."""
    times = DecisionTimes()
    assert times.statistics().p99_s == 0.0
    for number in range(100, 0, -1):
        times.add(asked_s=0.0, free_s=0.0, decided_s=number)
    measured = times.statistics()
    assert (measured.p50_s, measured.p99_s, measured.max_s) == (50, 99, 100)


def test_decision_times_forget_the_oldest() -> None:
    """Memory is bounded; the count goes on."""
    times = DecisionTimes()
    times.add(asked_s=0.0, free_s=0.0, decided_s=99.0)
    for _ in range(5000):
        times.add(asked_s=0.0, free_s=0.0, decided_s=1.0)
    measured = times.statistics()
    assert (measured.count, measured.max_s) == (5001, 1.0)

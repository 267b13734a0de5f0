"""The circuit breaker of S31 by example; `tests/stateful` holds it against a model."""

from __future__ import annotations

import math

import pytest

from seedance_sdk.circuit_breaker import CircuitBreaker, CircuitChange, CircuitState, ConnectionAttempt


def begun(breaker: CircuitBreaker, now_s: float) -> ConnectionAttempt:
    attempt = breaker.attempt(now_s)
    assert attempt is not None
    return attempt


def opened(breaker: CircuitBreaker, now_s: float = 0.0) -> None:
    for _ in range(3):
        breaker.ended(begun(breaker, now_s), now_s, failed=True)


def test_circuit_opens_at_the_third_failure_in_a_row() -> None:
    """Two may be chance; and one that was of use in between starts the count again."""
    breaker = CircuitBreaker()
    for _ in range(2):
        breaker.ended(begun(breaker, 0), 0, failed=True)
    breaker.progressed(begun(breaker, 0))
    for _ in range(2):
        breaker.ended(begun(breaker, 0), 0, failed=True)
    assert breaker.state is CircuitState.CLOSED
    breaker.ended(begun(breaker, 0), 0, failed=True)
    assert breaker.state is CircuitState.OPEN
    assert breaker.wait_s(0) == 1


def test_circuit_stays_open_twice_as_long_each_time_up_to_its_cap() -> None:
    """1 s, 2 s, 4 s …, 30 s: the probe that fails doubles it."""
    breaker = CircuitBreaker()
    opened(breaker)
    now_s, waits = 0.0, []
    for _ in range(8):
        waits.append(breaker.wait_s(now_s))
        assert breaker.attempt(now_s + waits[-1] - 0.001) is None
        now_s += waits[-1]
        breaker.ended(begun(breaker, now_s), now_s, failed=True)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_circuit_has_one_probe_at_a_time() -> None:
    """While it is out, and while it is on probation, nobody else connects."""
    breaker = CircuitBreaker()
    opened(breaker)
    probe = begun(breaker, 1)
    assert breaker.attempt(1) is None
    assert breaker.wait_s(5) == math.inf
    breaker.welcomed(probe, 5)
    assert breaker.state is CircuitState.HALF_OPEN
    assert breaker.on_probation(probe)
    assert breaker.attempt(6) is None


def test_circuit_closes_with_the_fifth_heartbeat_and_starts_over() -> None:
    """The next time that it opens it is for one second again."""
    breaker = CircuitBreaker()
    opened(breaker)
    breaker.ended(begun(breaker, 1), 1, failed=True)  # now open for 2 s
    probe = begun(breaker, 3)
    breaker.welcomed(probe, 3)
    for number in range(4):
        breaker.heartbeat_answered(probe, 4 + number)
        assert breaker.state is CircuitState.HALF_OPEN
    breaker.heartbeat_answered(probe, 8)
    assert breaker.state is CircuitState.CLOSED
    opened(breaker, 9)
    assert breaker.wait_s(9) == 1


def test_circuit_is_half_open_for_half_a_minute_at_most() -> None:
    """Greeting is not enough: four heartbeats in 30 s, and it is open again, for longer."""
    breaker = CircuitBreaker()
    opened(breaker)
    probe = begun(breaker, 1)
    breaker.welcomed(probe, 2)
    for _ in range(4):
        breaker.heartbeat_answered(probe, 3)
    breaker.heartbeat_answered(probe, 32)
    assert breaker.state is CircuitState.OPEN
    assert breaker.wait_s(32) == 2
    breaker.ended(probe, 33, failed=True)  # it is the probe no more
    assert breaker.wait_s(33) == 1


def test_circuit_pauses_briefly_after_a_probe_that_was_of_use() -> None:
    """A network that cuts every few seconds carries a piece each time; one that only greets is left alone."""
    breaker = CircuitBreaker()
    opened(breaker)
    now_s = 1.0
    for pause in (1, 1, 1):
        probe = begun(breaker, now_s)
        breaker.welcomed(probe, now_s)
        breaker.progressed(probe)
        breaker.ended(probe, now_s, failed=True)
        assert breaker.wait_s(now_s) == pause
        now_s += pause
    probe = begun(breaker, now_s)
    breaker.welcomed(probe, now_s)
    breaker.ended(probe, now_s, failed=True)
    assert breaker.wait_s(now_s) == 2


def test_circuit_takes_an_orderly_end_for_no_failure() -> None:
    """A probe that the server sent elsewhere makes room for the next; a greeted one stays on probation."""
    breaker = CircuitBreaker()
    opened(breaker)
    breaker.ended(begun(breaker, 1), 1, failed=False)
    probe = begun(breaker, 1)
    breaker.welcomed(probe, 1)
    breaker.heartbeat_answered(probe, 2)
    breaker.ended(probe, 2, failed=False)
    again = begun(breaker, 3)
    breaker.welcomed(again, 3)
    for number in range(4):
        breaker.heartbeat_answered(again, 4 + number)
    assert breaker.state is CircuitState.CLOSED


def test_circuit_tells_each_change_once() -> None:
    """What a hook hears is the whole story."""
    heard: list[CircuitChange] = []
    breaker = CircuitBreaker("ws://x", on_change=heard.append)
    opened(breaker)
    probe = begun(breaker, 1)
    breaker.welcomed(probe, 1)
    for _ in range(5):
        breaker.heartbeat_answered(probe, 2)
    assert [(change.former.value, change.state.value, change.open_for_s) for change in heard] == [
        ("closed", "open", 1),
        ("open", "half_open", 0),
        ("half_open", "closed", 0),
    ]
    assert {change.url for change in heard} == {"ws://x"}


@pytest.mark.parametrize("failed", [True, False])
def test_circuit_hears_of_an_end_once(failed: bool) -> None:
    """Clean-up may tell again what was told."""
    breaker = CircuitBreaker()
    for _ in range(2):
        attempt = begun(breaker, 0)
        for _ in range(5):
            breaker.ended(attempt, 0, failed=failed)
    assert breaker.state is CircuitState.CLOSED

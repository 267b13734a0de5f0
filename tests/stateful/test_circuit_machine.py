"""The breaker equals its model; and a breaker that counts an orderly goodbye does not."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from seedance_sdk import reconnect
from seedance_sdk.circuit_breaker import CircuitBreaker, CircuitState, ConnectionAttempt
from tests.stateful.circuit_machine import CircuitMachine

TestCircuit = CircuitMachine.TestCase
TestCircuit.settings = settings(stateful_step_count=50)


def _two_probes(breaker: CircuitBreaker, now_s: float) -> ConnectionAttempt | None:
    breaker.expire(now_s)
    waiting = breaker.state is CircuitState.OPEN and now_s < breaker._until_s
    return None if waiting else ConnectionAttempt()


MISTAKES = {
    "an orderly goodbye counts": lambda: mock.patch.object(
        reconnect, "is_failure", lambda error: error.close_code in (1001, 1005, 1006, 1011, 1012, 1015)
    ),
    "two probes": lambda: mock.patch.object(CircuitBreaker, "attempt", _two_probes),
    "use is forgotten": lambda: mock.patch.object(CircuitBreaker, "progressed", return_value=None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_machine_catches_a_seeded_bug(mistake: str) -> None:
    """A machine that can't fail proves nothing."""
    machine = type("Machine", (CircuitMachine,), {"patched": staticmethod(MISTAKES[mistake])})
    tried = settings(
        max_examples=500,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=tried)

"""The circuit breaker equals its model, in histories that nobody would think of."""

from __future__ import annotations

from hypothesis import settings

from tests.stateful.circuit_machine import CircuitMachine

TestCircuit = CircuitMachine.TestCase
TestCircuit.settings = settings(stateful_step_count=50)

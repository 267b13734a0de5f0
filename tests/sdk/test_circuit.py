"""Who may connect and who may ask while an endpoint is doubted, on a virtual clock."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from seedance_sdk.causes import error_of_close
from seedance_sdk.circuit import Circuit
from seedance_sdk.circuit_breaker import CircuitChange, CircuitState, ConnectionAttempt

CUT, LEFT = error_of_close(1006, ""), error_of_close(1001, "")


async def opened() -> Circuit:
    circuit = Circuit("ws://x")
    for _ in range(3):
        circuit.ended(await circuit.attempt(), CUT)
    assert circuit.state is CircuitState.OPEN
    return circuit


async def greeted(circuit: Circuit) -> ConnectionAttempt:
    attempt = await circuit.attempt()
    circuit.welcomed(attempt)
    return attempt


async def test_circuit_holds_connections_back_until_a_probe_is_due(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The first waits out the pause; the others wait for what becomes of it."""
    circuit = await opened()
    began = trio.current_time()
    made: list[float] = []

    async def connect() -> None:
        attempt = await circuit.attempt()
        made.append(trio.current_time() - began)
        await trio.sleep(0.5)
        circuit.ended(attempt, LEFT)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(connect)
    assert made == [1, 1.5, 2]


async def test_circuit_lets_new_requests_pass_one_by_one_while_half_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """None while open, one at a time on probation, all at once when it is closed again."""
    circuit = await opened()
    under_way, most, done = 0, 0, 0

    async def ask() -> None:
        nonlocal under_way, most, done
        with await circuit.turn(lambda: False):
            under_way += 1
            most = max(most, under_way)
            await trio.sleep(0.3)
            under_way -= 1
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
        await trio.sleep(0.9)
        assert under_way == 0
        attempt = await greeted(circuit)
        await trio.sleep(0.7)
        assert (most, done) == (1, 2)
        for _ in range(5):
            circuit.heartbeat_answered(attempt)
        await trio.sleep(0.01)
        assert circuit.state is CircuitState.CLOSED
        assert under_way == 2
    assert done == 4


async def test_circuit_turn_that_is_cancelled_or_given_up_holds_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The next request does not wait for one that will never be made."""
    circuit = await opened()
    with trio.move_on_after(0.5) as patience:
        await circuit.turn(lambda: False)
    assert patience.cancelled_caught
    with await circuit.turn(lambda: True):
        pass
    await greeted(circuit)
    for _ in range(2):
        with trio.fail_after(0):
            turn = await circuit.turn(lambda: False)
        with turn:
            pass


async def test_circuit_attempt_that_is_cancelled_is_no_probe(autojump_clock: trio.testing.MockClock) -> None:
    """A client that closes in the pause leaves the way free."""
    circuit = await opened()
    with trio.move_on_after(0.5):
        await circuit.attempt()
    with trio.fail_after(0.6):
        await circuit.attempt()


async def test_circuit_outlives_a_mistake_in_its_hook(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody's counter must not end a connection."""
    heard: list[CircuitChange] = []

    def count(change: CircuitChange) -> None:
        heard.append(change)
        raise ValueError("a mistake")

    circuit = Circuit("ws://x", count)
    with caplog.at_level(logging.INFO, "seedance_sdk"):
        for _ in range(3):
            circuit.ended(await circuit.attempt(), CUT)
    assert [change.state for change in heard] == [CircuitState.OPEN]
    assert "on_circuit_change raised" in caplog.text
    assert "ws://x is open" in caplog.text

"""Heartbeats: where none is sent, what silence leads to, and how an endpoint gets out of doubt."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.testing

from seedance_sdk.circuit_breaker import CircuitChange, CircuitState
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.completion import Completion
from seedance_sdk.errors import ConnectFailed, ConnectionLost
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.testing import Answer, ScriptedServer
from seedance_wire.heartbeat import decode_heartbeat
from tests.sdk.hand_server import HandServer, begin, delta, final, opened


async def test_heartbeat_is_sent_after_ten_silent_seconds_while_somebody_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Three bytes with a number that grows; each answer is a sign of life, and the stream goes on."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await trio.sleep(45)
        assert [decode_heartbeat(ping) for ping in server.wire.pings] == [1, 2, 3, 4]
        await server.say(delta(1, 1, "late", 0), final(1, 2, "late"))
        assert (await generation.receive()).delta == "late"
        assert server.dials == 1


async def test_heartbeat_is_not_sent_where_frames_flow_or_nobody_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It costs nothing where it says nothing."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        for number in range(1, 11):
            await trio.sleep(9)
            await server.say(delta(1, number, "x", number - 1))
        await server.say(final(1, 11, "x" * 10))
        while await generation.receive() is not None:
            pass
        await trio.sleep(3600)
        assert server.wire.pings == []


async def test_connection_that_is_half_open_is_cut_within_fifteen_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No frame, no pong, no FIN: the reader gets the rest over the next connection."""
    server = HandServer()
    heard: list[ReconnectDetails] = []
    async with opened(server, on_reconnect=heard.append) as session:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "He", 0))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        server.wire.answers_pings = False
        await server.left()
        await server.again()
        assert trio.current_time() - began == pytest.approx(15.125)
        assert (await server.resume()).last_processed_id == 1
        await server.say(final(1, 2, "He"))
        assert (await generation.receive()).delta == "He"
    assert isinstance(heard[0].caused_by, ConnectionLost)
    assert "heartbeat" in str(heard[0].caused_by)


async def test_connection_with_frames_is_not_cut_for_a_pong_that_never_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Some proxies swallow pongs; what arrives is proof enough."""
    server = HandServer()
    async with opened(server) as session:
        await begin(session, server)
        server.wire.answers_pings = False
        for number in range(1, 6):
            await trio.sleep(12)  # longer than the silence, shorter than silence and patience
            await server.say(delta(1, number, "x", number - 1))
        assert server.wire.pings
        assert server.dials == 1


async def test_circuit_opens_in_an_outage_and_closes_by_heartbeats(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Pauses of 1, 2, 4 s and the jitter; then five heartbeats, one a second; the stream lost nothing."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.refusal = ConnectFailed("refused")
        server.cut()
        await trio.sleep(5)
        assert session._route.place.circuit.state is CircuitState.OPEN
        server.refusal = None
        await server.again()
        greeted_at = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert session._route.place.circuit.state is CircuitState.HALF_OPEN
        await server.resume()
        await server.say(delta(1, 1, "on", 0))
        assert (await generation.receive()).delta == "on"
        await trio.sleep(5.5)
        assert session._route.place.circuit.state is CircuitState.CLOSED
        assert len(server.wire.pings) == 5
        assert trio.current_time() - greeted_at == pytest.approx(5.5)
        waits = [later - earlier for earlier, later in pairwise(server.dialed_at)]
        assert waits[-3:] == pytest.approx([1 + 0.5, 2 + 1, 4 + 2])


async def test_server_that_greets_and_answers_no_heartbeat_is_left_alone_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A process that accepts and hangs does not count as back."""
    server = HandServer()
    async with opened(server) as session:
        await begin(session, server)
        server.refusal = ConnectFailed("refused")
        server.cut()
        await trio.sleep(5)
        server.refusal = None
        await server.again()
        server.wire.answers_pings = False
        await trio.sleep(6.5)
        assert session._route.place.circuit.state is CircuitState.OPEN


async def test_client_reports_its_circuit_and_holds_new_requests_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """First connections that fail are told at once and open the circuit; then requests wait."""
    server = ScriptedServer(Answer("a"))
    heard: list[CircuitChange] = []
    async with AsyncSeedanceClient(connector=server, on_circuit_change=heard.append) as client:
        server.stop()
        for _ in range(3):
            with pytest.raises(ConnectFailed):
                await client.chat(messages=[{"role": "user", "content": "x"}])
        assert client.circuit is CircuitState.OPEN
        server.start()
        began = trio.current_time()
        answer = await client.chat(messages=[{"role": "user", "content": "x"}])
        assert isinstance(answer, Completion)
        assert trio.current_time() - began >= 1
        await trio.sleep(6)
        assert client.circuit is CircuitState.CLOSED
    assert [change.state.value for change in heard] == ["open", "half_open", "closed"]

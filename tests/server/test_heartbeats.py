"""Tests of `seedance_server.heartbeats`, alone and through a whole server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio_websocket import WebSocketConnection

from seedance_server.heartbeats import Heartbeats
from seedance_server.testing import serve_in_memory
from seedance_wire.errors import CloseCode
from seedance_wire.heartbeat import decode_heartbeat
from tests.server.wire_client import wire_client


class Heart:
    """A connection that answers after a while, or never."""

    def __init__(self, answers_after_s: float | None = 0.02) -> None:
        self.heard_s = trio.current_time()
        self.answers_after_s = answers_after_s
        self.beats: list[float] = []
        self.sequences: list[int] = []
        self.dead_s: float | None = None

    async def beat(self, payload: bytes) -> None:
        self.beats.append(trio.current_time())
        self.sequences.append(decode_heartbeat(payload))
        if self.answers_after_s is None:
            await trio.sleep_forever()
        await trio.sleep(self.answers_after_s)
        self.heard_s = trio.current_time()

    def pronounce_dead(self) -> None:
        self.dead_s = trio.current_time()


@asynccontextmanager
async def beating() -> AsyncIterator[tuple[Heartbeats, float]]:
    """Heartbeats at work, and the time at which they began."""
    heartbeats = Heartbeats(30.0, 10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeats.run)
        yield heartbeats, trio.current_time()
        nursery.cancel_scope.cancel()


async def test_silent_connection_is_asked_and_lives_on(autojump_clock) -> None:
    """Every half a minute of silence, no sooner; its answer is the round trip."""
    async with beating() as (heartbeats, began_s):
        heart = Heart()
        heartbeats.watch(heart)
        await trio.sleep(100)
        assert [round(beat - began_s, 2) for beat in heart.beats] == [30, 60.02, 90.04]
        assert heart.dead_s is None
        counts = heartbeats.statistics()
        assert (counts.watched, counts.sent, counts.answered, counts.dead) == (1, 3, 3, 0)
        assert counts.last_rtt_s == pytest.approx(0.02)


async def test_busy_connection_is_never_asked(autojump_clock) -> None:
    """What it says shows that it lives."""
    async with beating() as (heartbeats, _):
        heart = Heart()
        heartbeats.watch(heart)
        for _ in range(20):
            await trio.sleep(29)
            heart.heard_s = trio.current_time()
        assert heart.beats == []


async def test_connection_without_a_sign_of_life_is_closed(autojump_clock) -> None:
    """Once, after its time; others are not touched."""
    async with beating() as (heartbeats, began_s):
        dead, alive = Heart(None), Heart()
        for heart in (dead, alive):
            heartbeats.watch(heart)
        await trio.sleep(300)
        assert dead.dead_s == began_s + 40
        assert len(dead.beats) == 1
        assert alive.dead_s is None
        assert heartbeats.statistics().dead == 1


async def test_connection_that_says_something_else_lives(autojump_clock) -> None:
    """A pong that waits behind other things is no death."""
    async with beating() as (heartbeats, began_s):
        heart = Heart(None)
        heartbeats.watch(heart)
        await trio.sleep(35)
        heart.heard_s = trio.current_time()
        await trio.sleep(30)
        assert heart.dead_s is None
        assert [beat - began_s for beat in heart.beats] == [30]


async def test_connection_that_has_left_is_left_alone(autojump_clock) -> None:
    """Also if it leaves while its answer is awaited."""
    async with beating() as (heartbeats, _):
        early, late = Heart(), Heart(None)
        for heart in (early, late):
            heartbeats.watch(heart)
        heartbeats.forget(early)
        await trio.sleep(31)
        heartbeats.forget(late)
        await trio.sleep(100)
        assert early.beats == []
        assert len(late.beats) == 1
        assert late.dead_s is None
        assert heartbeats.statistics().watched == 0


async def test_sequence_counts_modulo_256(autojump_clock) -> None:
    """It has one byte."""
    async with beating() as (heartbeats, _):
        heart = Heart()
        heartbeats.watch(heart)
        await trio.sleep(30.02 * 260 + 1)
        assert heart.sequences == [number % 256 for number in range(1, 261)]


async def test_server_asks_a_silent_client(autojump_clock) -> None:
    """With three bytes in a ping, and the client's library answers."""
    async with serve_in_memory() as server, wire_client(server.connect()) as client:
        await trio.sleep(65)
        counts = server.door.heartbeats.statistics()
        assert (counts.watched, counts.sent, counts.answered, counts.dead) == (1, 2, 2, 0)
        await client.submit()
        await client.accepted()
        await client.until_end()


async def test_server_closes_a_client_that_is_gone_and_nobody_else(autojump_clock, monkeypatch) -> None:
    """A half-open connection holds its place for forty seconds, not for ever; its session can be resumed."""
    answer = WebSocketConnection._handle_ping_event
    gone: set[WebSocketConnection] = set()

    async def answer_unless_gone(websocket: WebSocketConnection, event: object) -> None:
        if websocket not in gone:
            await answer(websocket, event)

    monkeypatch.setattr(WebSocketConnection, "_handle_ping_event", answer_unless_gone)
    async with serve_in_memory() as server, wire_client(server.connect()) as other:
        async with wire_client(server.connect()) as client:
            gone.add(client.websocket)
            began_s = trio.current_time()
            with trio.fail_after(60):
                assert await client.close_code() == CloseCode.TIMED_OUT
            assert 39 <= trio.current_time() - began_s <= 41
        assert server.door.heartbeats.statistics().watched == 1
        with trio.move_on_after(100) as alive:
            await other.websocket.get_message()
        assert alive.cancelled_caught
        async with wire_client(server.connect(), former=client.welcome) as again:
            assert again.welcome.session_present

"""S29: requests share few connections, idle ones are closed in time, and there are never too many."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import RequestTimeout
from seedance_sdk.limits import Limits
from seedance_sdk.pool import Pool
from seedance_sdk.testing import Answer, ScriptedServer


@define(eq=False)
class Member:
    """A session that is what it says."""

    load: int = 0
    capacity: int = 2
    connected: bool = True
    accepts_requests: bool = True


def pool_of(*members: Member, max_connections: int = 3) -> Pool[Member]:
    pool: Pool[Member] = Pool(max_connections, idle_s=30)
    for member in members:
        pool.add(member)
    return pool


def test_request_goes_to_the_fullest_that_has_room() -> None:
    """Others run empty and can be closed; one with a connection comes before one without."""
    full, half, empty, asleep = Member(2), Member(1), Member(), Member(connected=False)
    assert pool_of(empty, full, half).choose() is half
    assert pool_of(asleep, full, empty).choose() is empty
    half.accepts_requests = False
    assert pool_of(empty, full, half).choose() is empty


def test_another_connection_is_made_only_where_none_has_room() -> None:
    """And beyond the bound a request waits in the shortest line."""
    pool = pool_of(Member(2), Member(3))
    assert pool.choose() is None
    assert pool.may_open
    pool.add(Member(4, capacity=8))
    assert not pool.may_open
    assert pool.choose() is not None
    crowded = pool_of(Member(9), Member(3), Member(8))
    chosen = crowded.choose()
    assert chosen is not None
    assert chosen.load == 3


def test_session_without_a_connection_is_no_way_around_the_bound() -> None:
    """It would make one."""
    pool = pool_of(Member(2), Member(2), Member(3), Member(connected=False))
    chosen = pool.choose()
    assert chosen is not None
    assert chosen.connected
    gone = pool_of(*(Member(accepts_requests=False) for _ in range(3)))
    assert gone.choose() is None
    assert not gone.may_open


def test_idle_connection_is_due_once_and_after_its_time() -> None:
    """What carries something in between begins anew."""
    member = Member()
    pool = pool_of(member, Member(1))
    assert pool.next_due_s == math.inf
    pool.note(5)
    assert pool.next_due_s == 35
    assert pool.due(34.9) == []
    member.load = 1
    pool.note(34)
    member.load = 0
    pool.note(34.5)
    assert pool.due(35) == []
    assert pool.due(64.5) == [member]
    assert pool.due(100) == []
    assert pool.statistics().closed_idle == 1


def test_spare_is_the_one_that_was_idle_for_longest() -> None:
    """Whoever can't wait for its time gets its place."""
    first, second = Member(1), Member()
    pool = pool_of(first, second)
    pool.note(1)
    first.load = 0
    pool.note(2)
    assert pool.spare() is second
    assert pool.spare() is first
    assert pool.spare() is None


def test_statistics_tell_what_there_is_and_what_was() -> None:
    """A session without a connection is kept, and counts as none."""
    gone = Member()
    pool = pool_of(gone, Member(2), Member(), Member(connected=False))
    pool.remove(gone)
    figures = pool.statistics()
    assert (figures.connections, figures.idle, figures.sessions, figures.load) == (2, 1, 3, 2)
    assert (figures.opened, figures.closed_idle) == (4, 0)


# ---- as a client sees it


async def test_many_conversations_share_few_connections_and_idle_ones_are_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """200 streams over four connections; half a minute later there is none, until the next request."""
    server = ScriptedServer(respond=lambda _: Answer("a", delay_s=5))
    attempts: list[Any] = []
    async with AsyncSeedanceClient(connector=server, on_reconnect=attempts.append) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(lambda: client.complete(prompt="x"))
            await trio.sleep(1)
            figures = client.statistics()
            assert (figures.connections, figures.load, figures.idle) == (4, 200, 0)
        await trio.sleep(29)
        assert (client.statistics().connections, client.statistics().idle) == (4, 4)
        await trio.sleep(2)
        assert server.connections == 0
        assert (client.statistics().connections, client.statistics().closed_idle) == (0, 4)
        began = trio.current_time()
        await client.complete(prompt="x")
        assert trio.current_time() - began == 10  # the answer's own time: it did not wait to connect again
        assert server.connections == 1
        assert not attempts  # nothing was lost


async def test_connection_with_a_stream_is_not_idle_however_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nor is one whose reader takes nothing."""
    server = ScriptedServer(Answer("a", "b", delay_s=100))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        await trio.sleep(250)
        assert server.connections == 1
        assert (await stream.collect()).text == "ab"
    assert len(server.endpoints) == 1


async def test_conversation_goes_on_in_a_session_whose_connection_was_idle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The session is kept: the server still has the earlier turn."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        first = await client.complete(prompt="x")
        await trio.sleep(60)
        second = await client.complete(prompt="y", continues=first)
        assert second.session_id == first.session_id
    assert len(server.endpoints) == 2


async def test_server_that_allows_fewer_streams_gets_more_connections(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What it allows is known once it has greeted; who waited for a place by then goes elsewhere."""
    server = ScriptedServer(respond=lambda _: Answer("a", delay_s=5), max_streams=10)
    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(lambda: client.complete(prompt="x"))
        await trio.sleep(1)
        assert client.statistics().connections == 6
        assert len(server.requests) == 60


async def test_requests_beyond_all_connections_wait_for_their_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Bounded: two connections of three streams; the seventh request begins when one of six has ended."""
    server = ScriptedServer(respond=lambda _: Answer("a", delay_s=5))
    limits = Limits(max_connections=2, max_streams=3)
    async with AsyncSeedanceClient(connector=server, limits=limits) as client, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(lambda: client.complete(prompt="x"))
        for second in range(1, 31, 10):
            await trio.sleep_until(second)
            assert server.connections == 2
            assert len(server.requests) == min(20, 6 * (1 + second // 10))
    assert len(server.requests) == 20


async def test_resumed_session_takes_the_place_of_an_idle_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It can't share a connection, and waits for one only while all carry something."""
    server = ScriptedServer(respond=lambda request: Answer("a", "b", delay_s=len(request.prompt or "")))
    bookmarks = []
    for _ in range(2):
        async with AsyncSeedanceClient(connector=server) as other:
            stream = await other.complete(prompt="x", stream=True)
            await stream.receive()
            bookmarks.append(stream.detach())
    async with AsyncSeedanceClient(connector=server, limits=Limits(max_connections=1)) as client:
        await client.complete(prompt="y")
        assert (await (await client.resume(bookmarks[0])).collect()).text == "b"
        assert client.statistics().closed_idle == 1
        busy = await client.complete(prompt="ten letters", stream=True)
        with pytest.raises(RequestTimeout):
            await client.resume(bookmarks[1], timeout=3)
        assert (await busy.collect()).text == "ab"
        assert (await (await client.resume(bookmarks[1])).collect()).text == "b"

"""A client's sessions: which one a request goes to, and when another is begun."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import AuthenticationError, ClientClosed, PermissionDenied, StreamNotFound
from seedance_sdk.limits import Limits
from seedance_sdk.testing import Answer, Cut, ScriptedServer

HI: Any = [{"role": "user", "content": "Hi"}]


async def test_sessions_connects_once_for_all_who_ask_at_once() -> None:
    """A hundred first requests are as few connections as hold them, and each gets its own answer."""
    server = ScriptedServer(respond=lambda request: Answer(*(request.prompt or "")))
    texts: dict[str, str] = {}

    async def ask(client: AsyncSeedanceClient, prompt: str) -> None:
        texts[prompt] = (await client.complete(prompt=prompt)).text

    prompts = [f"prompt {number}" for number in range(100)]
    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(ask, client, prompt)
    assert texts == {prompt: prompt for prompt in prompts}
    assert len(server.endpoints) == 2  # 64 streams each


async def test_sessions_goes_on_after_a_lost_connection(autojump_clock: trio.testing.MockClock) -> None:
    """A cut in the middle costs a reconnect, for all streams together, and no piece."""
    server = ScriptedServer(Answer("a", Cut(1011), "b"), Answer("c", Cut(), "d"))
    async with AsyncSeedanceClient(connector=server) as client:
        assert (await client.complete(prompt="x")).text == "ab"
        assert (await client.complete(prompt="y")).text == "cd"
    assert len(server.endpoints) == 3
    assert len(server.requests) == 2


async def test_sessions_takes_a_new_session_after_a_final_end() -> None:
    """The stream in the middle fails with the reason; the next request begins anew."""
    server = ScriptedServer(Answer("a", close_code=1008), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(PermissionDenied) as caught:
            await client.complete(prompt="x")
        assert (caught.value.partial, caught.value.close_code) == ("a", 1008)
        assert (await client.complete(prompt="y")).text == "b"
    assert len(server.endpoints) == 2


async def test_sessions_connects_anew_after_an_idle_connection_was_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection that ended between requests costs the next one nothing."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        await client.complete(prompt="x")
        server.close(1001)
        await trio.sleep(3600)
        assert len(server.endpoints) == 1  # nobody needs a connection, so none is made
        assert (await client.complete(prompt="y")).text == "b"


async def test_sessions_goes_elsewhere_after_goaway_while_old_streams_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A draining server finishes what it has; new requests get a new connection."""
    server = ScriptedServer(Answer(*"abc", delay_s=1), Answer("new"))
    async with AsyncSeedanceClient(connector=server) as client:
        old = await client.complete(prompt="x", stream=True)
        await server.go_away()
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.complete(prompt="y")).text == "new"
        assert server.connections == 2
        assert (await old.collect()).text == "abc"
        await trio.sleep(1)
        assert server.connections == 1


async def test_refused_upgrade_reaches_every_waiter() -> None:
    """All who waited for the connection learn why there is none, each with an error of its own."""
    server = ScriptedServer(refuse_status=401)
    errors = []

    async def ask(client: AsyncSeedanceClient) -> None:
        with pytest.raises(AuthenticationError) as caught:
            await client.chat(messages=HI)
        errors.append(caught.value)

    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, client)
    assert len({id(error) for error in errors}) == 5
    assert len(server.endpoints) == 1


async def test_turn_goes_on_from_what_a_call_returned(autojump_clock: trio.testing.MockClock) -> None:
    """Completion, stream or number: the next request names the turn before it, over cuts too."""
    server = ScriptedServer(*(Answer("a", Cut(), "b") for _ in range(4)))
    async with AsyncSeedanceClient(connector=server) as client:
        turn = await client.complete(prompt="1")
        stream = await client.complete(prompt="2", stream=True, continues=turn)
        await stream.collect()
        await client.complete(prompt="3", continues=stream)
        await client.complete(prompt="4", continues=3)
    assert [request.continues for request in server.requests] == [None, 1, 2, 3]


async def test_turn_stays_in_its_session_while_others_go_elsewhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Turns are known where they were made: a draining server's conversations come back when it does."""
    server = ScriptedServer(respond=lambda request: Answer(request.prompt or "", delay_s=1))
    async with AsyncSeedanceClient(connector=server) as client:
        old = await client.complete(prompt="old", stream=True)
        await server.go_away()
        await trio.testing.wait_all_tasks_blocked()
        new = await client.complete(prompt="new", stream=True)
        assert new.session_id != old.session_id
        turns = [await stream.collect() for stream in (old, new)]
        for turn in turns:
            following = await client.complete(prompt="next", continues=turn)
            assert (following.session_id, following.id) == (turn.session_id, 2)


async def test_turn_that_is_not_known_is_an_error_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another client's turn, or one of a session that is gone, is never taken for one of this session."""
    server = ScriptedServer(*(Answer("a") for _ in range(4)))
    async with AsyncSeedanceClient(connector=server) as first:
        turn = await first.complete(prompt="x")
    async with AsyncSeedanceClient(connector=server) as second:
        for unknown in (turn, 1):
            with pytest.raises(StreamNotFound):
                await second.complete(prompt="y", continues=unknown)
        lost = await second.complete(prompt="x")
        server.restart(forget=True)
        await trio.sleep(1)
        with pytest.raises(StreamNotFound):  # the client learns it when it asks
            await second.complete(prompt="y", continues=lost)
        assert (await second.complete(prompt="z")).text == "a"
        with pytest.raises(StreamNotFound):
            await second.complete(prompt="y", continues=lost)
    assert [request.prompt for request in server.requests] == ["x", "x", "z"]


async def test_sessions_keeps_a_few_sessions_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    """However many were needed at once, what is kept for later turns is bounded."""
    server = ScriptedServer(respond=lambda request: Answer("a", delay_s=1))
    limits = Limits(max_sessions=3, max_streams=1)
    async with AsyncSeedanceClient(connector=server, limits=limits) as client:
        streams = [await client.complete(prompt="x", stream=True) for _ in range(10)]
        turns = [await stream.collect() for stream in streams]
        assert len(client._sessions) == 10
        await trio.sleep(40)
        assert len(client._sessions) == 3
        found = 0
        for turn in turns:
            try:
                await client.complete(prompt="z", continues=turn)
                found += 1
            except StreamNotFound:
                pass
        assert found == 3


async def test_sessions_refuse_a_process_that_was_forked_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes must not write to one socket."""
    async with AsyncSeedanceClient(connector=ScriptedServer(Answer("a"))) as client:
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(ClientClosed, match="before a fork"):
            await client.complete(prompt="x")
        with pytest.raises(ClientClosed, match="before a fork"):
            client.report("x")
        monkeypatch.undo()
        assert (await client.complete(prompt="x")).text == "a"

"""Bookmarks: one client leaves a stream, or dies, and another goes on behind the last piece taken."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    ClientClosed,
    ConnectionLost,
    CursorAhead,
    Diverged,
    InvalidRequest,
    SeedanceError,
    StreamNotFound,
    Superseded,
)
from seedance_sdk.parameters import resume_request
from seedance_sdk.testing import Answer, ScriptedServer
from tests.sdk.hand_server import FOREVER, HandServer, begin, bookmark, opened, running

PIECES = ("Hé", "llo", " 🦊", "\n\n", "end")


@pytest.mark.parametrize("when", ["connected", "cut"])
async def test_with_only_detached_streams_needs_no_connection(
    when: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Nobody waits for them here."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        if when == "connected":
            generation.detach()
            server.cut()
        else:
            server.cut()
            await trio.testing.wait_all_tasks_blocked()
            generation.detach()
        await trio.sleep(3600)
        assert server.dials == (1 if when == "connected" else 2)
        assert session.accepts_requests


async def test_resumes_several_bookmarks_over_one_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A program that died in the middle of many streams goes on with all; none supersedes another."""
    server = HandServer()
    server.know(streams=3, messages=3)
    marks = [resume_request(bookmark(number, 4, 9), {}) for number in (2, 3)]
    async with running(server, bookmark=marks[0].bookmark) as session, trio.open_nursery() as nursery:
        for mark in reversed(marks):  # the one that the session began with need not be the first
            nursery.start_soon(session.resume, mark, FOREVER)
            await trio.testing.wait_all_tasks_blocked()
        await server.greet()
        asked_for = [await server.resume() for _ in marks]
        assert {(resume.stream_id, resume.last_processed_id) for resume in asked_for} == {(2, 4), (3, 4)}
        assert session.id == "s"
        nursery.cancel_scope.cancel()


async def test_aclose_leaves_detached_streams_and_keeps_the_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A stream that another client will take up is neither cancelled nor said goodbye to."""
    server = HandServer()
    async with opened(server) as session:
        left, read = [await begin(session, server, number) for number in (1, 2)]
        left.detach()
        await session.aclose()
        assert [getattr(event, "stream_id", None) for event in await server.rest()] == [2]
        assert server.wire.client_close_code == 1000
        with pytest.raises(ClientClosed):
            await read.receive()


async def test_stream_that_goes_on_here_is_not_resumed_again() -> None:
    """Two readers of one stream would get half of it each."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        request = resume_request(generation.bookmark, {})
        for leave in (lambda: None, generation.detach):
            leave()
            with pytest.raises(InvalidRequest, match="already"):
                await session.resume(request, FOREVER)


async def test_bookmark_leads_another_client_through_any_part_of_a_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """From before the first piece to behind the last: what both clients took is the whole."""
    for taken in range(len(PIECES) + 2):
        server = ScriptedServer(Answer(*PIECES))
        async with AsyncSeedanceClient(connector=server) as first:
            stream = await first.complete(prompt="x", stream=True)
            before = [await stream.receive() for _ in range(taken)]
            text = stream.detach().to_str()
        async with AsyncSeedanceClient(connector=server) as second:
            resumed = await second.resume(text)
            assert resumed.last_id == min(taken, len(PIECES))
            completion = await resumed.collect()
        assert "".join(chunk.delta for chunk in before if chunk) + completion.text == "".join(PIECES)
        assert completion.finish_reason == "stop"
        assert server.cancelled == []


async def test_bookmark_of_a_client_that_still_reads_supersedes_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two clients never fight for a session: the older one is told."""
    server = ScriptedServer(Answer(*PIECES, delay_s=1))
    async with (
        AsyncSeedanceClient(connector=server) as first,
        AsyncSeedanceClient(connector=server) as second,
    ):
        stream = await first.complete(prompt="x", stream=True)
        await stream.receive()
        resumed = await second.resume(stream.bookmark)
        with pytest.raises(Superseded):
            await stream.collect()
        assert (await resumed.collect()).text == "".join(PIECES[1:])
        await trio.sleep(60)
    assert len(server.endpoints) == 2


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"stream_id": 7}, StreamNotFound),
        ({"session_id": "other"}, StreamNotFound),
        ({"resume_token": b"guess"}, StreamNotFound),
        ({"last_processed_id": 900}, CursorAhead),
        ({"digest16": bytes(16)}, Diverged),
    ],
    ids=str,
)
async def test_bookmark_that_leads_nowhere_is_a_typed_error(
    change: dict[str, Any], kind: type[SeedanceError]
) -> None:
    """A forged, foreign or wrong bookmark gets an answer, and the client is as good as before."""
    server = ScriptedServer(Answer(*PIECES), Answer("next"))
    async with AsyncSeedanceClient(connector=server) as first:
        stream = await first.complete(prompt="x", stream=True)
        await stream.receive()
        mark = stream.detach()
    async with AsyncSeedanceClient(connector=server) as second:
        with pytest.raises(kind):
            await second.resume(evolve(mark, **change))
        assert (await second.complete(prompt="y")).text == "next"


async def test_failed_stream_still_has_its_bookmark(autojump_clock: trio.testing.MockClock) -> None:
    """Who gave up on a server that was away too long can go on when it is back."""
    server = ScriptedServer(Answer(*PIECES))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        await stream.receive()
        server.stop()
        with pytest.raises(ConnectionLost) as caught:
            await stream.collect()
        server.start()
        resumed = await client.resume(stream.bookmark)
        assert caught.value.partial + (await resumed.collect()).text == "".join(PIECES)

"""One reader's side of a stream: what it had, what it never got, and what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import EngineFailed, StreamClosed
from seedance_sdk.reading import Reading
from seedance_sdk.testing import Answer, ErrorCode, ScriptedServer


@asynccontextmanager
async def reading(*script: Answer, **options: Any) -> AsyncIterator[Reading]:
    async with AsyncSeedanceClient(connector=ScriptedServer(*script)) as client:
        yield (await client.complete(prompt="x", stream=True, **options))._reading


async def test_piece_put_back_was_never_taken() -> None:
    """Text, offsets and bookmark are as before it, and the next read gives it out again, once."""
    async with reading(Answer("a", "é", "c")) as taken:
        await taken.receive()
        before = (taken.received.text, taken.received.last_id, taken.bookmark)
        piece = await taken.receive()
        after = (taken.received.text, taken.received.last_id, taken.bookmark)
        taken.put_back(piece)
        assert (taken.received.text, taken.received.last_id, taken.bookmark) == before
        assert await taken.receive() is piece
        assert (taken.received.text, taken.received.last_id, taken.bookmark) == after
        assert (await taken.collect()).text == "aéc"


async def test_end_put_back_comes_again() -> None:
    """A stream whose last piece nobody got has not ended for its reader."""
    async with reading(Answer("a")) as taken:
        await taken.receive()
        last = await taken.receive()
        assert last is not None
        assert (last.finish_reason, taken.unfinished) == ("stop", False)
        taken.put_back(last)
        assert taken.unfinished
        assert await taken.receive() is last
        assert await taken.receive() is None
        taken.put_back(None)
        assert taken.received.whole


async def test_piece_put_back_while_another_reads_is_not_lost() -> None:
    """Several readers of one stream: each piece goes to one of them, whatever is put back."""
    async with reading(Answer(*"abcd")) as taken:
        first = await taken.receive()
        second = await taken.receive()
        taken.put_back(first)
        rest = []
        while (chunk := await taken.receive()) is not None:
            rest.append(chunk)
        assert sorted(chunk.delta for chunk in [*rest, second] if chunk) == ["", "a", "b", "c", "d"]
        assert taken.bookmark.offset == 4


async def test_reading_is_unfinished_until_its_end_its_failure_or_its_leaving() -> None:
    """Whoever waits for the end of an answer can tell whether one may come."""
    async with reading(Answer("a")) as ended:
        assert ended.unfinished
        await ended.collect()
        assert not ended.unfinished
    async with reading(Answer("a", error=ErrorCode.ENGINE_FAILED)) as failed:
        await failed.receive()
        assert failed.unfinished
        with pytest.raises(EngineFailed):
            await failed.receive()
        assert not failed.unfinished
    async with reading(Answer("a", endless=True)) as left:
        left.abandon()
        assert not left.unfinished
        with pytest.raises(StreamClosed):
            await left.receive()


async def test_every_wait_lets_others_run() -> None:
    """A loop over what is there already can be cancelled, and starves nobody."""
    async with reading(Answer("a", "b"), Answer("c")) as taken:
        await trio.testing.wait_all_tasks_blocked()
        for wait in (
            taken.receive,
            taken.receive,
            taken.receive,
            taken.receive,
            taken.events.next,
            taken.aclose,
        ):
            with trio.testing.assert_checkpoints():
                await wait()


async def test_deadline_bounds_the_whole_call_through_an_outage(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However the server fails, nobody waits longer than they said."""
    server = ScriptedServer(Answer("a", "b", delay_s=1, endless=True))
    async with AsyncSeedanceClient(connector=server) as client:
        began = trio.current_time()
        stream = await client.complete(prompt="x", stream=True, deadline=30)
        await stream.receive()
        server.stop()
        with pytest.raises(Exception, match="deadline"):
            await stream.collect()
        assert trio.current_time() - began == pytest.approx(30)

"""How an async face reaches trio: the same calls from trio and from asyncio, and nothing lost in between."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sniffio
import trio

from seedance_sdk.errors import UnsupportedEventLoop
from seedance_sdk.passage import AsyncioPassage, TrioPassage, running_library
from seedance_sdk.portal import Portal


def test_library_is_the_one_that_runs() -> None:
    """Trio and asyncio are told apart; anything else is refused by name, with the way out."""

    async def name() -> str:
        return running_library()

    assert trio.run(name) == "trio"
    assert asyncio.run(name()) == "asyncio"
    with pytest.raises(UnsupportedEventLoop, match=r"no async library.*SeedanceClient in a thread"):
        running_library()
    sniffio.thread_local.name = "curio"
    try:
        with pytest.raises(UnsupportedEventLoop, match="curio"):
            running_library()
    finally:
        sniffio.thread_local.name = None


async def thread() -> str:
    return sniffio.current_async_library()


async def test_trio_passage_stays_where_it_is() -> None:
    """On trio a call is a call."""
    assert await TrioPassage().call(thread) == "trio"
    assert TrioPassage().read(lambda: 1) == 1


def test_asyncio_passage_leads_to_trio() -> None:
    """On asyncio everything of the sessions happens in the thread that runs trio."""

    @asynccontextmanager
    async def nothing() -> Any:
        yield

    async def main() -> None:
        portal: Portal[Any] = Portal(nothing(), close_timeout_s=10)
        await asyncio.to_thread(portal.start)
        passage = AsyncioPassage(portal)
        assert await passage.call(thread) == "trio"
        assert passage.read(trio.lowlevel.in_trio_run)
        await asyncio.to_thread(portal.close)

    asyncio.run(main())

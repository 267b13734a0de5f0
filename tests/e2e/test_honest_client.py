"""A client that keeps the rules, against the real server in simulated time: no bound is ever meant for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.transport import WebSocketConnector
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory

pytestmark = pytest.mark.slow


async def dial(server: InMemoryServer, _endpoint: object) -> trio.StapledStream[Any, Any]:
    return server.connect()


async def test_client_above_the_servers_rate_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """900 short requests from 60 tasks and a long stream beside them: what the rate delays comes whole."""
    texts: list[str] = []
    story = [f"{number} " for number in range(1500)]

    def script(request: GenerationRequest) -> list[str]:
        return ["!"] if request.params.max_tokens == 1 else story

    async with serve_in_memory(ScriptedEngine(script)) as server:
        connector = WebSocketConnector(open_stream=partial(dial, server))
        reconnects: list[object] = []
        async with AsyncSeedanceClient(
            "ws://simulated/v1/chat", connector=connector, on_reconnect=reconnects.append
        ) as client:

            async def ask() -> None:
                for _ in range(15):
                    answer = await client.complete(prompt="x", max_tokens=1)
                    texts.append(answer.text)

            beside = await client.complete(prompt="a story", stream=True)
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(ask)
                assert (await beside.collect()).text == "".join(story)
    assert texts == ["!"] * 900
    assert reconnects == []

"""A server whose engine breaks, as a device does that answers every later call with the same error."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import EngineFailed
from seedance_server.shutdown import ENGINE_FAILED_STATUS
from tests.faults.server_process import numbers_process

pytestmark = pytest.mark.slow

TOKENS = 200
BREAKS_AT = 60


async def test_streams_go_on_in_the_next_process_when_the_engine_failed(tmp_path: Path) -> None:
    """The process ends with its own status, no number is lost or repeated, and what isn't kept says so."""
    server = numbers_process(tmp_path, step_ms=5)
    whole, server.arguments = server.arguments, (*server.arguments, f"--fail-at-step={BREAKS_AT}")
    texts: list[str] = []

    async def read(client: AsyncSeedanceClient) -> None:
        stream = await client.complete(prompt="count", max_tokens=TOKENS, stream=True)
        texts.append("".join([chunk.delta async for chunk in stream]))
        assert stream.reconnects == 1

    async def read_unkept(client: AsyncSeedanceClient) -> None:
        stream = await client.complete(prompt="count", max_tokens=TOKENS, stream=True, durability="none")
        with pytest.raises(EngineFailed) as caught:
            async for _ in stream:
                pass
        assert caught.value.retryable

    try:
        server.start()
        await server.wait_ready()
        async with AsyncSeedanceClient(server.url) as client, trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(read, client)
            nursery.start_soon(read_unkept, client)
            assert await server.wait() == ENGINE_FAILED_STATUS
            assert "engine stopped" in server.log
            assert texts == []
            server.arguments = whole
            server.start()
        assert texts == ["".join(numbers(TOKENS))] * 2
        assert server.log.count("stream taken over") == 2
    finally:
        server.destroy()

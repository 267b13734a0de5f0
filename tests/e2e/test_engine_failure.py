"""A server whose engine breaks, as a device does that answers every later call with the same error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import EngineFailed
from seedance_server.engine.sequence import SequenceOutput
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import StreamState
from seedance_server.shutdown import ENGINE_FAILED_STATUS
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Delta, Error, ErrorCode, Frame
from tests.faults.server_process import numbers_process
from tests.server.wire_client import wire_client

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


class Poisoned(ScriptedEngine):
    """Breaks at a request's third piece."""

    def step(self) -> Sequence[SequenceOutput]:
        outputs = super().step()
        if any(output.token_ids == (3,) for output in outputs):
            raise RuntimeError("a kernel has read beyond its memory")
        return outputs


def is_over(had: Sequence[Frame]) -> bool:
    return bool(had) and isinstance(had[-1], Error)


async def test_request_that_breaks_every_engine_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """Else its client, which comes back each time, would take down process after process."""
    journal, had, former, lives = MemoryJournal(), [], None, 0
    while not is_over(had):
        async with (
            serve_in_memory(Poisoned(["a", "b", "c"]), journal=journal) as server,
            wire_client(server.connect(), former=former) as client,
        ):
            lives += 1
            if former is None:
                await client.submit()
                await client.accepted()
            else:
                await client.resume(1, had)
            with suppress(ConnectionClosed):
                while not is_over(had):
                    had += await client.frames(1)
        former = client.welcome if former is None else former
    assert lives == 4
    assert [frame.text for frame in had if isinstance(frame, Delta)] == ["a", "b"]
    assert (had[-1].code, had[-1].retryable) == (ErrorCode.ENGINE_FAILED, False)
    async with serve_in_memory(journal=journal):
        record = await journal.find_stream(client.welcome.session_id, 1)
    assert record.state is StreamState.FINISHED

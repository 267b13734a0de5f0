"""A server whose engine breaks, as a device does that answers every later call with the same error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio_websocket import ConnectionClosed

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import EngineFailed
from seedance_server.config import Config
from seedance_server.engine.sequence import SequenceOutput
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import StreamState
from seedance_server.shutdown import ENGINE_FAILED_STATUS
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from seedance_wire.messages import Delta, Error, ErrorCode, Frame, Welcome
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


class Crowd(ScriptedEngine):
    """Breaks at once, whoever else is in the step, when it comes to a long prompt."""

    def step(self) -> Sequence[SequenceOutput]:
        active = [request for request in self.requests if request.id in self.active]
        if any(len(request.prompt_ids) > 20 for request in active):
            raise RuntimeError("a kernel has read beyond its memory")
        return super().step()


@define
class Side:
    """A client through all lives of the server."""

    prompt: str
    had: list[Frame] = field(factory=list)
    former: Welcome | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.had) and (is_over(self.had) or getattr(self.had[-1], "final", None) is not None)

    async def live(self, server: InMemoryServer) -> None:
        async with wire_client(server.connect(), former=self.former) as client:
            with suppress(ConnectionClosed):
                if self.former is None:
                    await client.submit(prompt=self.prompt)
                    await client.accepted()
                else:
                    await client.resume(1, self.had)
                while not self.is_over:
                    self.had += await client.frames(1)
        self.former = self.former or client.welcome


async def test_those_beside_a_request_that_breaks_every_engine_get_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Those that processes ended with are tried one at a time: who only stood beside isn't given up too."""
    journal, sides, lives = MemoryJournal(), [Side("x" * 30), Side("a"), Side("b")], 0
    while not all(side.is_over for side in sides):
        lives += 1
        async with (
            serve_in_memory(Crowd(["one", "two"]), journal=journal) as server,
            trio.open_nursery() as nursery,
        ):
            for side in sides:
                if not side.is_over:
                    nursery.start_soon(side.live, server)
    assert lives <= 4
    assert [is_over(side.had) for side in sides] == [True, False, False]
    for side in sides[1:]:
        assert [frame.text for frame in side.had if isinstance(frame, Delta)] == ["one", "two"]


async def test_stream_whose_client_comes_and_goes_is_not_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It leaves memory each time before its next frame: that is one process, and it has not ended."""
    journal, config = MemoryJournal(), Config(model_path="m", orphan_grace_s=1)
    async with serve_in_memory(step_s=60, journal=journal, config=config) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
        former = client.welcome
        for _ in range(4):
            await trio.sleep(3)
            async with wire_client(server.connect(), former=former) as client:
                await client.resume(1)
        assert (await journal.load_stream(former.session_id, 1)).attempts == 0
    async with serve_in_memory(step_s=60, journal=journal, config=config) as server:
        for _ in range(4):
            async with wire_client(server.connect(), former=former) as client:
                await client.resume(1)
                await trio.sleep(0.5)
            await trio.sleep(3)
        assert (await journal.load_stream(former.session_id, 1)).attempts == 2
        async with wire_client(server.connect(), former=former) as client:
            await client.resume(1)
            assert (await client.until_end())[0] == "Hello, world!"

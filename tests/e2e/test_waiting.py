"""More requests than the engine has room for: each waits, is told where it stands, or is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from seedance_server.config import Config
from seedance_server.engine.errors import KvCapacityExceeded
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.served_model import Capacity, ServedModel
from seedance_server.tenants import Priority, Tenant
from seedance_server.testing import InMemoryServer, ScriptedEncoder, ScriptedEngine, serve_in_memory
from seedance_wire.messages import (
    Accepted,
    Delta,
    Error,
    ErrorCode,
    FinishReason,
    Flush,
    Phase,
    Refused,
    Status,
)
from tests.server.wire_client import WireClient, wire_client

ROWS = 2


class NarrowEngine(ScriptedEngine):
    """A scripted engine that runs two at a time and keeps the others waiting, as a real one does."""

    def check(self, prompt_tokens: int, params: SamplingParams) -> None:
        super().check(prompt_tokens, params)
        if prompt_tokens > 100:
            raise KvCapacityExceeded(prompt_tokens, 100)

    def step(self):
        running = list(self._sequences)[:ROWS]
        held = {id_: self._sequences.pop(id_) for id_ in list(self._sequences) if id_ not in running}
        cancelled = {id_: one for id_, one in held.items() if one.cancelled}
        self._sequences |= cancelled
        outputs = super().step()
        self._sequences |= {id_: one for id_, one in held.items() if id_ not in cancelled}
        return outputs


@asynccontextmanager
async def narrow(**settings: object) -> AsyncIterator[InMemoryServer]:
    model = ServedModel(
        name="narrow",
        context_tokens=4096,
        vocab_size=0x110000,
        engine=NarrowEngine(["x"] * 50),
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
        capacity=Capacity(sequences=ROWS, blocks=1000),
    )
    config = Config(model_path="m", **settings)
    async with serve_in_memory(model=model, config=config, step_s=0.1) as server:
        yield server


async def answers(
    client: WireClient, count: int
) -> tuple[dict[int, str], dict[int, list[Status]], list[object]]:
    """Reads until so many streams have ended; texts and news by stream, and how they ended."""
    texts: dict[int, str] = {}
    news: dict[int, list[Status]] = {}
    ends: list[object] = []
    while len(ends) < count:
        match await client.receive():
            case Delta(stream_id=stream_id, text=text):
                texts[stream_id] = texts.get(stream_id, "") + text
            case Status(stream_id=stream_id) as status:
                news.setdefault(stream_id, []).append(status)
                assert stream_id not in texts, "it has begun"
            case Flush(final=final) as end if final is not None:
                ends.append(end)
            case Error() as end:
                ends.append(end)
    return texts, news, ends


async def test_requests_beyond_the_room_wait_and_are_told_their_place(autojump_clock) -> None:
    """Everybody is served whole, first come first; places only fall, and a time is told once there is one."""
    async with narrow() as server, wire_client(server.connect()) as client:
        for _ in range(12):
            await client.submit()
        texts, news, ends = await answers(client, 12)
        assert texts == dict.fromkeys(range(1, 13), "x" * 50)
        assert [end.stream_id for end in ends] == sorted(texts)
        waited = news[12]
        places = [status.position for status in waited]
        assert places == sorted(set(places), reverse=True)
        assert {status.phase for status in waited} == {Phase.QUEUED}
        assert waited[-1].estimated_wait_ms
        assert 1 not in news
        assert server.admission.queue_statistics().granted == server.admission.open_requests == 0


async def test_request_that_can_never_fit_is_refused_at_once_and_small_ones_run(autojump_clock) -> None:
    """Not after a wait, and not at the cost of those behind it."""
    async with narrow() as server, wire_client(server.connect()) as client:
        await client.submit("y" * 101)
        refused = await client.refused()
        assert (refused.code, refused.retryable) == (ErrorCode.CAPACITY_EXCEEDED, False)
        for _ in range(3):
            await client.submit()
        assert len((await answers(client, 3))[0]) == 3


async def test_request_that_finds_the_line_full_is_refused_at_once(autojump_clock) -> None:
    """With when to come back; one tenant's line is not the other's."""
    async with narrow(max_waiting_per_tenant=3) as server, wire_client(server.connect()) as client:
        for _ in range(9):
            await client.submit()
            await trio.sleep(0.05)
        refused = 0
        with trio.move_on_after(1):
            while True:
                event = await client.receive()
                if isinstance(event, Refused):
                    refused += 1
                    assert (event.code, event.retryable) == (ErrorCode.OVERLOADED, True)
                    assert event.retry_after_ms >= 1_000
        assert refused == 2
        server.admission.enter("another")


async def test_request_that_waits_too_long_is_told_to_come_back(autojump_clock) -> None:
    """An ERROR that may be tried again, in the journal like any end; nothing is left in line."""
    async with narrow(queue_timeout_s=4) as server, wire_client(server.connect()) as client:
        for _ in range(9):
            await client.submit()
        _, _, ends = await answers(client, 9)
        errors = [end for end in ends if isinstance(end, Error)]
        assert 0 < len(errors) < 9
        for error in errors:
            assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True)
            assert error.retry_after_ms >= 1_000
        assert server.admission.open_requests == 0


async def test_request_that_waits_heeds_its_deadline_and_its_cancel(autojump_clock) -> None:
    """In line as in the engine."""
    async with narrow() as server, wire_client(server.connect()) as client:
        for _ in range(6):
            await client.submit()
        began_s = trio.current_time()
        await client.submit(deadline_ms=2_000)
        await client.submit()
        seen: dict[int, object] = {}
        while not (isinstance(event := await client.receive(), Accepted) and event.stream_id == 8):
            pass
        await client.cancel(8)
        while not {7, 8} <= seen.keys():
            event = await client.receive()
            if isinstance(event, Error) or (isinstance(event, Flush) and event.final is not None):
                seen[event.stream_id] = event
        assert trio.current_time() - began_s < 3
        assert seen[7].code is ErrorCode.DEADLINE_EXCEEDED
        assert seen[8].final.finish_reason is FinishReason.CANCELLED


async def test_request_names_its_tenant_to_the_engine(autojump_clock) -> None:
    """With the weight and class that hold when it begins."""
    engine = ScriptedEngine()
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        server.gate.accounts.update([Tenant(name="local", weight=3.0, priority=Priority.HIGH)])
        await client.submit()
        await client.until_end()
        (request,) = engine.requests
        assert (request.tenant, request.weight, request.priority) == ("local", 3.0, 1)
        assert request.session == client.welcome.session_id


async def test_request_whose_client_leaves_leaves_the_line(autojump_clock) -> None:
    """Nobody waits for nobody."""
    async with narrow() as server:
        async with wire_client(server.connect()) as client:
            for _ in range(9):
                await client.submit()
            await trio.sleep(1)
            assert server.admission.queue_statistics().waiting == 9 - ROWS - 2
        await trio.sleep(40)
        statistics = server.admission.queue_statistics()
        assert (statistics.waiting, statistics.granted, server.admission.open_requests) == (0, 0, 0)

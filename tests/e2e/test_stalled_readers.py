"""Readers that stand still beside good ones, over the whole server in memory: nobody else notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from seedance_server.config import Config
from seedance_server.engine.progress import silent
from seedance_server.served_model import load_served_model
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from seedance_wire.messages import Ack, Delta, Flow, FlowAction, Flush
from tests.server.wire_client import WireClient, wire_client
from tests.tiny_models import build_tiny_model

PIECES = [f"{number} " for number in range(60)]
WHOLE = "".join(PIECES)
GOOD, STALLED = 5, 20


async def good_reader(server: InMemoryServer, arrivals_s: list[float], texts: list[str]) -> None:
    """Takes each piece at once."""
    async with wire_client(server.connect()) as client:
        await client.submit()
        text = ""
        while not (isinstance(event := await client.receive(), Flush) and event.final is not None):
            if isinstance(event, Delta):
                arrivals_s.append(round(trio.current_time(), 6))
                text += event.text
        texts.append(text)


async def good_readers(server: InMemoryServer) -> tuple[list[float], list[str]]:
    """All of them at once: when each piece came since they began, and the texts."""
    began_s = trio.current_time()
    arrivals_s: list[float] = []
    texts: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(GOOD):
            nursery.start_soon(good_reader, server, arrivals_s, texts)
    return sorted(round(at_s - began_s, 3) for at_s in arrivals_s), texts


async def never_reads(client: WireClient, stopped: trio.Event) -> None:
    """Doesn't even read its socket."""
    client.acks = False
    await client.submit()
    await stopped.wait()


async def never_acknowledges(client: WireClient, stopped: trio.Event) -> None:
    """Reads all that comes, and says nothing."""
    client.acks = False
    await client.submit()
    while True:
        await client.receive()


async def acknowledges_once_a_second(client: WireClient, stopped: trio.Event) -> None:
    """One frame a second."""
    client.acks = False
    await client.submit()
    taken = 0
    while True:
        event = await client.receive()
        if isinstance(event, Delta) and event.id > taken:
            taken += 1
            await trio.sleep(1)
            await client.send(Ack(processed=((event.stream_id, taken),)))


@pytest.mark.slow
@pytest.mark.parametrize("behave", [never_reads, never_acknowledges, acknowledges_once_a_second])
async def test_readers_that_stand_still_cost_good_ones_nothing(
    autojump_clock, behave: Callable[[WireClient, trio.Event], Awaitable[None]]
) -> None:
    """To the millisecond the same arrivals as without them; each of the others stands in the engine."""
    engine = ScriptedEngine(PIECES)
    async with serve_in_memory(engine) as server, trio.open_nursery() as nursery:
        alone = await good_readers(server)
        stopped = trio.Event()

        async def stalled_reader() -> None:
            async with wire_client(server.connect_lockstep()) as client:
                await behave(client, stopped)

        for _ in range(STALLED):
            nursery.start_soon(stalled_reader)
        await trio.sleep(3)
        if behave is not acknowledges_once_a_second:
            assert len(engine.paused) == STALLED
        beside = await good_readers(server)
        assert beside == alone
        assert beside[1] == [WHOLE] * GOOD
        nursery.cancel_scope.cancel()


async def test_reader_that_stood_still_gets_every_frame_when_it_goes_on(autojump_clock) -> None:
    """Paused, parked and taken up again: no frame is missing or doubled, and it was told each time."""
    engine = ScriptedEngine(PIECES)
    config = Config(model_path="m", pause_park_s=5.0)
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        client.acks = False
        await client.submit()
        stream_id = await client.accepted()
        frames, words = [], []
        for wait_s in (1, 20, 0):
            with trio.move_on_after(3):
                while True:
                    event = await client.receive()
                    if isinstance(event, Flow):
                        words.append(event.action)
                    elif isinstance(event, Delta | Flush):
                        frames.append(event)
            await trio.sleep(wait_s)
            await client.send(Ack(processed=((stream_id, frames[-1].id),)))
        assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
        assert "".join(frame.text for frame in frames if isinstance(frame, Delta)) == WHOLE
        assert frames[-1].final is not None
        assert words[:3] == [FlowAction.THROTTLE, FlowAction.PAUSE, FlowAction.RUN]
        assert len(engine.requests) == 2


@pytest.mark.slow
async def test_cancelling_everything_leaves_nothing_behind(autojump_clock) -> None:
    """Running, standing or parked: within two steps all gauges are 0, and every reader has its end."""
    engine = ScriptedEngine(lambda _: ["x "] * 1000)
    config = Config(model_path="m", pause_park_s=2.0)
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        client.acks = False
        for _ in range(10):
            await client.submit()
        with trio.move_on_after(5):
            while True:
                await client.receive()
        for _ in range(10):
            await client.submit()
        with trio.move_on_after(1):
            while True:
                await client.receive()
        before = server.engine_loop.statistics()
        assert (before.generations, before.paused) == (10, 10)
        for stream_id in range(1, 21):
            await client.cancel(stream_id)
        ended = set()
        while len(ended) < 20:
            event = await client.receive()
            if isinstance(event, Flush) and event.final is not None:
                ended.add(event.stream_id)
        await trio.sleep(0.03)
        after = server.engine_loop.statistics()
        assert (after.generations, after.paused, after.running) == (0, 0, 0)
        assert engine.active == ()
        assert server.admission.open_requests == 0


async def test_pings_cancels_and_closes_pass_a_full_window(autojump_clock) -> None:
    """Back-pressure holds data up and nothing else, for as long as it lasts."""
    engine = ScriptedEngine(PIECES)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        client.acks = False
        await client.submit()
        stream_id = await client.accepted()
        with trio.move_on_after(5):
            while True:
                await client.receive()
        with trio.fail_after(1):
            await client.websocket.ping(b"still there?")
        await client.cancel(stream_id)
        with trio.fail_after(1):
            while not isinstance(event := await client.receive(), Flush):
                pass
        assert event.final is not None
        with trio.fail_after(3):
            await client.websocket.aclose()


@pytest.mark.slow
async def test_models_answer_is_the_same_when_its_reader_stood_still(autojump_clock, tmp_path: Path) -> None:
    """A real forward pass: paused, parked, its KV memory given up and computed again: not a byte differs."""
    path = str(build_tiny_model("qwen2", tmp_path / "model"))
    config = Config(model_path=path, threads=1, kv_memory_bytes=1 << 22, pause_park_s=5.0)
    sampling = {"temperature": 0.9, "seed": 7, "max_tokens": 90, "min_tokens": 90}
    answers, parked = [], []
    for stands in (False, True):
        model = load_served_model(config, silent)
        async with (
            serve_in_memory(model=model, config=config, step_s=0.01) as server,
            wire_client(server.connect()) as client,
        ):
            client.acks = not stands
            await client.submit("Größe, café, 你好 and 🚀", sampling=sampling)
            stream_id = await client.accepted()
            frames = []
            while not frames or not (isinstance(frames[-1], Flush) and frames[-1].final is not None):
                with trio.move_on_after(20) as patience:
                    while not (isinstance(event := await client.receive(), Delta | Flush)):
                        pass
                    frames.append(event)
                if patience.cancelled_caught:
                    parked.append(server.engine_loop.statistics().generations)
                    await client.send(Ack(processed=((stream_id, frames[-1].id),)))
            answers.append("".join(frame.text for frame in frames if isinstance(frame, Delta)))
    assert answers[0] == answers[1]
    assert len(parked) >= 2
    assert set(parked) == {0}

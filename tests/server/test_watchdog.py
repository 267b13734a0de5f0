"""Tests of `seedance_server.watchdog`."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_loop import EngineLoop
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import InlineExecutor, ScriptedEngine, serve_in_memory
from seedance_server.watchdog import Watchdog


class Engine(ScriptedEngine):
    """Turns over without bringing anything while it is told to, in some steps with prompt tokens."""

    is_barren = is_reading = False

    def step(self):
        if not self.is_barren:
            return super().step()
        self.computed_tokens += self.is_reading
        return []


class Journal(MemoryJournal):
    """Its commits take for ever while it is told so."""

    done = unsettled = 0

    def statistics(self):
        return evolve(super().statistics(), unsettled=self.unsettled, operations=self.done)


@asynccontextmanager
async def watched(engine, *, step_s=0.1):
    loop = EngineLoop(engine, InlineExecutor(step_s), buffer_outputs=8, stall_timeout_s=60)
    watchdog = Watchdog(loop, Journal(), stall_timeout_s=60, clock=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(watchdog._journal.run)
        nursery.start_soon(loop.run)
        nursery.start_soon(watchdog.run)
        yield watchdog, loop
        nursery.cancel_scope.cancel()


def request(id_: int) -> GenerationRequest:
    return GenerationRequest(id=id_, prompt_ids=(1,), params=SamplingParams(), arrival_s=0.0)


async def test_watchdog_misses_tokens_of_what_runs(autojump_clock) -> None:
    """An engine that steps but brings nothing is not alive; it is again with the next token."""
    engine = Engine(["x"] * 10_000)
    async with watched(engine) as (watchdog, loop):
        with loop.submit(request) as generation:
            await generation.receive()
            engine.is_barren = True
            await trio.sleep(59)
            assert watchdog.trouble() is None
            await trio.sleep(3)
            assert watchdog.trouble() == "the engine has brought no token for 61 s, though it has work"
            engine.is_barren = False
            await generation.receive()
            assert watchdog.trouble() is None


async def test_watchdog_takes_a_prompt_that_is_read_for_progress(autojump_clock) -> None:
    """A long prompt brings no token for minutes, and all is well."""
    engine = Engine()
    async with watched(engine) as (watchdog, loop):
        engine.is_barren = engine.is_reading = True
        with loop.submit(request):
            await trio.sleep(500)
            assert watchdog.trouble() is None


async def test_watchdog_misses_nothing_where_nothing_is_due(autojump_clock) -> None:
    """Without work, or with readers that stand still, no token is to be missed; nor is it at once after."""
    engine = Engine(["x"] * 10_000)
    async with watched(engine) as (watchdog, loop):
        await trio.sleep(500)
        assert watchdog.trouble() is None
        with loop.submit(request) as generation:
            await trio.sleep(500)
            assert generation.is_paused
            assert watchdog.trouble() is None
            for _ in range(4):
                await generation.receive()
            engine.is_barren = True
            await trio.sleep(50)
            assert watchdog.trouble() is None


async def test_watchdog_sees_a_step_that_does_not_end(autojump_clock) -> None:
    """The decode thread is stuck in the model or the driver: the loop says so, and it is passed on."""
    async with watched(Engine(), step_s=1000) as (watchdog, loop):
        with loop.submit(request):
            await trio.sleep(59)
            assert watchdog.trouble() is None
            await trio.sleep(2)
            assert watchdog.trouble() == "the engine has been in one step for 61 s"


async def test_watchdog_misses_commits_that_somebody_waits_for(autojump_clock) -> None:
    """A disk that never returns looks like patience from everywhere else."""
    async with watched(Engine()) as (watchdog, _):
        journal = watchdog._journal
        await trio.sleep(500.5)
        journal.unsettled = 3
        await trio.sleep(59)
        assert watchdog.trouble() is None
        await trio.sleep(3)
        assert watchdog.trouble() == "the journal has made no commit for 62 s, though some wait for it"
        journal.done += 1
        assert watchdog.trouble() is None


async def test_watchdog_counts_turns_of_the_loop_that_took_too_long(autojump_clock) -> None:
    """Over 50 ms everybody's pongs are late; shorter ones are none."""
    now_s = 0.0
    async with watched(Engine()) as (watchdog, _):
        watchdog._clock = lambda: now_s
        await trio.sleep(5)
        assert watchdog.statistics().loop_stalls == 0
        for held_up_s in (0.04, 0.06, 0.045, 0.2):
            await trio.sleep(0.5)
            now_s += held_up_s
        await trio.sleep(0.5)
        assert watchdog.statistics().loop_stalls == 2
        assert watchdog.statistics().longest_loop_stall_s == pytest.approx(0.2)


async def test_readiness_tells_what_the_watchdog_misses(autojump_clock) -> None:
    """Whoever balances the load sends new work elsewhere, and reads why."""
    engine = Engine(["x"] * 10_000)
    async with serve_in_memory(engine, journal=(journal := Journal())) as server:
        with server.engine_loop.submit(request):
            engine.is_barren = True
            await trio.sleep(70)
            assert "no token for" in server.door.trouble()
            stream = server.connect()
            await stream.send_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while part := await stream.receive_some():
                answer += part
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"the engine has brought no token for" in answer
        await trio.sleep(5)
        assert server.door.trouble() is None
        journal.unsettled = 1
        await trio.sleep(70)
        assert "no commit for" in server.door.trouble()

"""Tests of `seedance_server.watchdog`."""

from contextlib import asynccontextmanager
from unittest.mock import ANY

import pytest
import trio
from attrs import define, evolve

from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import EngineStopped
from seedance_server.journal.memory import MemoryJournal
from seedance_server.readiness import Cause, Reason
from seedance_server.testing import InlineExecutor, ScriptedEngine, serve_in_memory
from seedance_server.watchdog import Watchdog
from seedance_wire.messages import Resumed
from tests.server.attacks import UPGRADE
from tests.server.wire_client import http, wire_client


class Engine(ScriptedEngine):
    """Turns over without bringing anything while it is told to, in some steps with prompt tokens."""

    is_barren = is_reading = False

    def step(self):
        if not self.is_barren:
            return super().step()
        self.computed_tokens += self.is_reading
        return []


class Journal(MemoryJournal):
    """Its commits take for ever, or its disk is full, while it is told so."""

    done = unsettled = 0
    complaint = lack = None

    def trouble(self):
        return self.complaint or super().trouble()

    def shortage(self):
        return self.lack

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
            assert watchdog.reasons() == ()
            await trio.sleep(3)
            assert watchdog.reasons() == (
                Reason(Cause.STALLED, "the engine has brought no token for 61 s, though it has work"),
            )
            while generation.buffered:
                await generation.receive()
            engine.is_barren = False
            await generation.receive()
            assert watchdog.reasons() == ()


async def test_watchdog_takes_a_prompt_that_is_read_for_progress(autojump_clock) -> None:
    """A long prompt brings no token for minutes, and all is well."""
    engine = Engine()
    async with watched(engine) as (watchdog, loop):
        engine.is_barren = engine.is_reading = True
        with loop.submit(request):
            await trio.sleep(500)
            assert watchdog.reasons() == ()


async def test_watchdog_misses_nothing_where_nothing_is_due(autojump_clock) -> None:
    """Without work, or with readers that stand still, no token is to be missed; nor is it at once after."""
    engine = Engine(["x"] * 10_000)
    async with watched(engine) as (watchdog, loop):
        await trio.sleep(500)
        assert watchdog.reasons() == ()
        with loop.submit(request) as generation:
            await trio.sleep(500)
            assert generation.is_paused
            assert watchdog.reasons() == ()
            for _ in range(4):
                await generation.receive()
            engine.is_barren = True
            await trio.sleep(50)
            assert watchdog.reasons() == ()


async def test_watchdog_sees_a_step_that_does_not_end(autojump_clock) -> None:
    """The decode thread is stuck in the model or the driver: the loop says so, and it is passed on."""
    async with watched(Engine(), step_s=1000) as (watchdog, loop):
        with loop.submit(request):
            await trio.sleep(59)
            assert watchdog.reasons() == ()
            await trio.sleep(2)
            assert watchdog.reasons() == (Reason(Cause.STALLED, "the engine has been in one step for 61 s"),)


async def test_watchdog_misses_commits_that_somebody_waits_for(autojump_clock) -> None:
    """A disk that never returns looks like patience from everywhere else."""
    async with watched(Engine()) as (watchdog, _):
        journal = watchdog._journal
        await trio.sleep(500.5)
        journal.unsettled = 3
        await trio.sleep(59)
        assert watchdog.reasons() == ()
        await trio.sleep(3)
        assert watchdog.reasons() == (
            Reason(Cause.JOURNAL, "the journal has made no commit for 62 s, though some wait for it"),
        )
        journal.done += 1
        assert watchdog.reasons() == ()


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


async def test_watchdog_names_every_reason_the_gravest_first(autojump_clock) -> None:
    """An engine that is gone hides no broken disk, nor the other way round."""
    async with watched(ScriptedEngine(fail_at_step=1)) as (watchdog, loop):
        with loop.submit(request), pytest.raises(EngineStopped):
            await loop._generations[1].receive()
        watchdog._journal.complaint, watchdog._journal.lack = "the storage failed", "the disk is full"
        stopped, failed, full = watchdog.reasons()
        assert (stopped.cause, failed.cause, full.cause) == (Cause.ENGINE, Cause.JOURNAL, Cause.ROOM)
        assert "scripted failure" in stopped.text
        assert (failed.text, full.text) == ("the storage failed", "the disk is full")


@define
class Asked:
    """What the server says over HTTP: whether it is ready, alive, and lets a WebSocket in; and why not."""

    ready: bool
    alive: bool
    open: bool
    text: str


async def ask(server) -> Asked:
    ready, alive, upgrade = [
        await http(server.connect(), request_)
        for request_ in (*(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in PATHS), UPGRADE)
    ]
    good = b"HTTP/1.1 200 "
    return Asked(
        ready.startswith(good), alive.startswith(good), b" 101 " in upgrade.split(b"\r\n")[0], ready.decode()
    )


PATHS = ("/readyz", "/healthz")


def stall_engine(server, engine) -> None:
    engine.is_barren = True
    server.engine_loop.submit(request)


def hang_in_a_step(server, _engine) -> None:
    server.engine_loop._executor.step_s = 1000
    server.engine_loop.submit(request)


def break_engine(server, engine) -> None:
    engine._fail_at_step = engine.steps + 1
    server.engine_loop.submit(request)


def fail_journal(server, _engine) -> None:
    server.journal.complaint = "the storage failed"


def stall_journal(server, _engine) -> None:
    server.journal.unsettled = 1


def fill_disk(server, _engine) -> None:
    server.journal.lack = "the journal's disk is full"


@pytest.mark.parametrize(
    ("fault", "words", "alive", "is_open"),
    [
        (stall_engine, "stalled: the engine has brought no token for", False, False),
        (hang_in_a_step, "stalled: the engine has been in one step for", False, False),
        (break_engine, "engine: the engine has stopped: RuntimeError: scripted failure", False, False),
        (fail_journal, "journal: the storage failed", True, False),
        (stall_journal, "journal: the journal has made no commit for", True, False),
        (fill_disk, "room: the journal's disk is full", True, True),
    ],
)
async def test_every_fault_turns_readiness_red_and_says_whether_to_wait(
    autojump_clock, fault, words, alive, is_open
) -> None:
    """Whoever balances the load sends new work elsewhere and reads why; a full disk still lets clients in."""
    engine = Engine(["x"] * 10_000)
    async with serve_in_memory(engine, journal=Journal()) as server:
        assert await ask(server) == Asked(True, True, True, ANY)
        fault(server, engine)
        await trio.sleep(70)
        asked = await ask(server)
        assert words in asked.text
        assert (asked.ready, asked.alive, asked.open) == (False, alive, is_open)
        if fault is stall_engine:
            engine.is_barren = False
            await trio.sleep(1)
            assert (await ask(server)).ready


async def test_session_goes_on_while_the_disk_is_full(autojump_clock) -> None:
    """Red for new work, and yet whoever was cut comes back to its stream and has the rest."""
    async with serve_in_memory(Engine(["x"] * 40), journal=Journal(), step_s=0.1) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            stream_id = await client.accepted()
            taken = await client.frames(5)
            welcome = client.welcome
        server.journal.lack = "the journal's disk is full"
        assert not (await ask(server)).ready
        async with wire_client(server.connect(), former=welcome) as client:
            assert isinstance(await client.resume(stream_id, taken), Resumed)
            assert len(taken + await client.frames()) == 41

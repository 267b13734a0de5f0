"""Tests of `seedance_server.engine_loop`."""

import threading
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from seedance_server.decode_thread import DecodeThread
from seedance_server.engine.errors import InvalidParameter, NumericalError
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import FinishReason, GenerationRequest
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import EngineStopped
from seedance_server.testing import InlineExecutor, ScriptedEngine

LONG = ["x"] * 1000


def request(id_: int, **params) -> GenerationRequest:
    return GenerationRequest(id=id_, prompt_ids=(1, 2), params=SamplingParams(**params), arrival_s=0.0)


@asynccontextmanager
async def running(engine, *, buffer_outputs=8, step_s=0.01, idle_check_s=0.0):
    loop = EngineLoop(
        engine,
        InlineExecutor(step_s),
        buffer_outputs=buffer_outputs,
        stall_timeout_s=5,
        idle_check_s=idle_check_s,
        clock=trio.current_time,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        yield loop
        nursery.cancel_scope.cancel()


async def collect(generation):
    outputs = []
    while not outputs or outputs[-1].finish is None:
        outputs.append(await generation.receive())
    return outputs


async def test_outputs_are_heard_of_and_taken_in_plain_calls(autojump_clock) -> None:
    """Whoever takes them so needs no task that wakes up; a full buffer's pause ends there too."""
    engine = ScriptedEngine(["a", "b", "c"])
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            assert generation.take(9) == []
            taken = []
            generation.heard_by(lambda: taken.append([output.text for output in generation.take(9)]))
            await trio.sleep(1)
            assert (taken, generation.is_over, generation.buffered) == ([["a"], ["b"], ["c"], [""]], True, 0)
    engine = ScriptedEngine(LONG)
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            await trio.sleep(1)
            assert (generation.is_paused, generation.is_over, len(generation.take(2))) == (True, False, 2)
            assert generation.is_paused
            generation.take(9)
            assert not generation.is_paused


async def test_loop_hands_on_every_output_and_sleeps_without_work(autojump_clock) -> None:
    """One hop per step; nothing to do, no step."""
    engine = ScriptedEngine(["a", "b"])
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            outputs = await collect(generation)
        assert [output.text for output in outputs] == ["a", "b", ""]
        assert outputs[-1].finish.reason is FinishReason.STOP
        steps = engine.steps
        await trio.sleep(100)
        assert engine.steps == steps
        assert loop.statistics().generations == 0


async def test_a_slow_reader_pauses_itself_and_nobody_else(autojump_clock) -> None:
    """The loop never waits for a client: one that doesn't read leaves the batch, with bounded memory."""
    engine = ScriptedEngine(LONG)
    async with running(engine) as loop:
        with loop.submit(request) as stalled, loop.submit(request) as quick:
            outputs = await collect(quick)
            assert len(outputs) == len(LONG) + 1
            assert stalled.is_paused
            assert stalled.buffered <= 8
            assert engine.paused == (stalled.id,)
            assert loop.statistics().paused == 1


async def test_a_paused_generation_goes_on_where_it_was(autojump_clock) -> None:
    """Pausing and resuming loses and doubles nothing, at any pace of the reader."""
    engine = ScriptedEngine([str(number) for number in range(200)])
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            texts = []
            for index in range(201):
                if index % 17 == 0:
                    await trio.sleep(1)
                texts.append((await generation.receive()).text)
        assert texts == [str(number) for number in range(200)] + [""]
        assert loop.statistics().pauses > 3


async def test_a_throttled_generation_gets_every_other_step(autojump_clock) -> None:
    """One whose window is nearly full goes on slowly; its neighbour doesn't notice."""
    engine = ScriptedEngine(["x"] * 20)
    async with running(engine, buffer_outputs=100) as loop:
        with loop.submit(request) as slow, loop.submit(request) as quick:
            slow.throttle(True)
            slow.throttle(True)
            await collect(quick)
            assert 9 <= slow.buffered <= 11
            slow.throttle(False)
            await trio.sleep(0.125)
            assert len(await collect(slow)) == 21
            slow.throttle(True)


async def test_a_held_generation_stands_until_it_is_let_go(autojump_clock) -> None:
    """Whatever room its buffer has; what the running step still brings is kept, and nothing is lost."""
    engine = ScriptedEngine([str(number) for number in range(50)])
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            texts = [(await generation.receive()).text for _ in range(10)]
            generation.hold(True)
            generation.hold(True)
            await trio.sleep(5)
            assert generation.is_paused
            assert (engine.paused, generation.buffered, loop.statistics().pauses) == ((generation.id,), 1, 1)
            texts.append((await generation.receive()).text)
            await trio.sleep(5)
            assert generation.buffered == 0
            generation.hold(False)
            texts += [output.text for output in await collect(generation)]
            generation.hold(True)
        assert texts == [*map(str, range(50)), ""]


async def test_a_full_buffer_and_a_hold_pause_independently(autojump_clock) -> None:
    """It goes on when neither is left, in whichever order they go."""
    engine = ScriptedEngine(LONG)
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            await trio.sleep(1)
            full = generation.buffered
            generation.hold(True)
            for _ in range(full):
                await generation.receive()
            await trio.sleep(1)
            assert (generation.buffered, engine.paused) == (0, (generation.id,))
            generation.hold(False)
            await trio.sleep(1)
            assert generation.buffered == full
            generation.hold(True)
            generation.hold(False)
            await trio.sleep(1)
            assert (generation.buffered, engine.paused) == (full, (generation.id,))


class SteppedEngine(ScriptedEngine):
    """Says when a step begins, and ends it when it is told to."""

    def __init__(self) -> None:
        super().__init__(LONG)
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def step(self):
        self.begun.release()
        assert self.may_end.acquire(timeout=5)
        return super().step()


@asynccontextmanager
async def on_a_thread(engine, clock=lambda: 0.0):
    thread = DecodeThread()
    thread.start()
    loop = EngineLoop(engine, thread, buffer_outputs=100, stall_timeout_s=5, clock=clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        yield loop
        nursery.cancel_scope.cancel()
        engine.may_end.release(10)
    assert await thread.stop(5)


async def test_a_decision_is_timed_apart_from_the_step_that_ran() -> None:
    """An edge waits for a forward pass that it can't interrupt; the next step is made without it."""
    engine = SteppedEngine()
    now_s = 0.0
    async with on_a_thread(engine, lambda: now_s) as loop:
        with loop.submit(request) as generation, loop.submit(request) as other:
            await trio.to_thread.run_sync(engine.begun.acquire)
            now_s = 2.25
            generation.hold(True)
            now_s = 3.0
            engine.may_end.release(2)
            for _ in range(2):
                await other.receive()
    times = loop.decision_times.statistics()
    assert (times.count, times.step_p50_s, times.max_s) == (1, 0.75, 0.0)


async def test_the_next_step_does_not_wait_for_the_loop() -> None:
    """What a step brings is handed on while the next one runs, however busy the loop is."""
    engine = SteppedEngine()
    async with on_a_thread(engine) as loop:
        with loop.submit(request) as generation:
            engine.may_end.release(1)
            await generation.receive()
            for _ in range(2):
                assert engine.begun.acquire(timeout=5)
            await trio.testing.wait_all_tasks_blocked()
            engine.may_end.release()
            assert engine.begun.acquire(timeout=5)  # and the loop stands still meanwhile
            assert generation.buffered == 0


async def test_leaving_early_frees_the_sequence_within_a_step(autojump_clock) -> None:
    """Nobody decodes for a reader that is gone, paused or not."""
    engine = ScriptedEngine(LONG)
    async with running(engine) as loop:
        for read in (0, 1, 20):
            with loop.submit(request) as generation:
                for _ in range(read):
                    await generation.receive()
                await trio.sleep(0.5)
            await trio.sleep(0.03)
            assert engine.active == ()
        assert loop.statistics().generations == 0


async def test_cancel_is_answered_by_a_last_output(autojump_clock) -> None:
    """Also for one that is paused, and for one that has ended it is nothing."""
    engine = ScriptedEngine(LONG)
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            await trio.sleep(1)
            assert generation.is_paused
            generation.cancel()
            outputs = await collect(generation)
            assert outputs[-1].finish.reason is FinishReason.CANCELLED
            generation.cancel()


async def test_a_cancelled_receive_loses_nothing(autojump_clock) -> None:
    """The next one gets the output."""
    engine = ScriptedEngine(["a", "b"])
    async with running(engine, step_s=1) as loop:
        with loop.submit(request) as generation:
            with trio.move_on_after(0.5):
                await generation.receive()
            await trio.sleep(5)
            with trio.CancelScope() as scope:
                scope.cancel()
                await generation.receive()
            assert [output.text for output in await collect(generation)] == ["a", "b", ""]


async def test_a_step_that_raises_ends_every_generation_and_all_new_work(autojump_clock) -> None:
    """A retryable error for each, the cause in readiness, and a refusal at once from then on."""
    engine = ScriptedEngine(LONG, fail_at_step=5)
    async with running(engine) as loop:
        assert loop.trouble() is None
        with loop.submit(request) as first, loop.submit(request) as second:
            for generation in (first, second):
                with pytest.raises(EngineStopped):
                    await collect(generation)
            assert first.buffered == 0
        await trio.sleep(1)
        assert engine.steps == 5
        assert "RuntimeError: scripted failure" in loop.trouble()
        with pytest.raises(EngineStopped):
            loop.submit(request)


async def test_a_request_that_cannot_be_added_fails_alone(autojump_clock) -> None:
    """Its neighbours' outputs are what they were."""

    class Picky(ScriptedEngine):
        def add(self, request):
            if request.params.seed == 13:
                raise InvalidParameter("seed", "is unlucky")
            super().add(request)

    async with running(Picky(["a"])) as loop:
        with (
            loop.submit(lambda id_: request(id_, seed=13)) as bad,
            loop.submit(request) as good,
        ):
            with pytest.raises(InvalidParameter):
                await bad.receive()
            assert [output.text for output in await collect(good)] == ["a", ""]


async def test_a_sequence_error_is_an_output_like_any_other(autojump_clock) -> None:
    """The engine goes on."""
    engine = ScriptedEngine(["a", "b"], errors={1: NumericalError("NaN")})
    async with running(engine) as loop:
        with loop.submit(request) as generation:
            outputs = await collect(generation)
        assert isinstance(outputs[-1].finish.error, NumericalError)
        assert loop.failure is None


async def test_a_step_that_hangs_is_reported(autojump_clock) -> None:
    """Alive means a step lately, if anything runs."""
    async with running(ScriptedEngine(LONG), step_s=60) as loop:
        with loop.submit(request):
            await trio.sleep(4)
            assert loop.trouble() is None
            await trio.sleep(4)
            assert "one step for 8 s" in loop.trouble()


async def test_intervals_between_tokens_are_counted_unless_a_reader_held_them_up(autojump_clock) -> None:
    """What the pause still lets through counts for nothing, nor does what comes first after it."""
    async with running(ScriptedEngine(["a"] * 6), step_s=0.5) as loop:
        with loop.submit(request) as generation:
            for _ in range(3):
                await generation.receive()
            generation.hold(True)
            await trio.sleep(20)
            generation.hold(False)
            await collect(generation)
        intervals = loop.token_intervals
        assert intervals.buckets[-1][1] == 3  # 1-2, 2-3, 5-6
        assert intervals.sum == pytest.approx(3 * 0.5)


async def test_an_idle_engine_compares_its_books_once(autojump_clock) -> None:
    """After every busy time, when nobody waits for it; work that comes meanwhile waits for nothing else."""
    engine = ScriptedEngine(["a"])
    async with running(engine, idle_check_s=1.0) as loop:
        await trio.sleep(10)
        assert engine.integrity_checks == 1
        for pause_s, checks in [(0.5, 1), (0.5, 1), (1.5, 2), (9, 3)]:
            with loop.submit(request) as generation:
                await collect(generation)
            await trio.sleep(pause_s)
            assert engine.integrity_checks == checks


async def test_an_engine_whose_books_are_wrong_is_stopped(autojump_clock) -> None:
    """Blocks that two sequences hold would mix two answers: better none at all, and loudly."""

    class Muddled(ScriptedEngine):
        def check_integrity(self):
            raise AssertionError("a block is owned twice")

    async with running(Muddled(), idle_check_s=1.0) as loop:
        await trio.sleep(2)
        assert "owned twice" in loop.trouble()
        with pytest.raises(EngineStopped):
            loop.submit(request)

"""The event loop's side of the engine: one hop to the decode thread per step, no waiting for clients.

The rule that everything here serves: the loop never awaits a client. Each generation has a bounded buffer;
before it can fill, the engine is told to pause that generation, and to resume it once its reader has caught
up. A pause takes effect one step later, so the buffer keeps room for what that step still brings. Who reads
may hold it as well, or slow it down, before its buffer says so. Commands (add, cancel, pause, resume) ride in
with the next step and outputs ride out with it; with nothing to do the loop sleeps. If a step raises, the
engine is gone for good, since a device that failed fails every later step: all generations end with
`EngineStopped`, later ones as well, and `run` returns, for the process to end and the next one to go on.

Nor does the engine wait for the loop: while there is work one hop is always queued behind the one that runs,
so the thread begins the next step by itself while the loop hands on what the last one brought. A hop fetches
its commands when it begins, so what is asked for until then still counts.

It must not know the wire, clients or text: only ids, requests and outputs.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog
import trio
from attrs import define

from seedance_server.decision_times import DecisionTimes
from seedance_server.decode_thread import Job, PipelineExecutor
from seedance_server.distribution import Distribution
from seedance_server.engine.engine_statistics import EngineStatistics
from seedance_server.engine.sequence import GenerationRequest, SequenceOutput
from seedance_server.engine_hop import Command, GenerationEngine, StepResult, advance
from seedance_server.errors import EngineStopped

__all__ = ["EngineLoop", "EngineLoopStatistics", "Generation"]

_log = structlog.get_logger(__name__)

_AHEAD = 2
"""Hops on the executor while there is work: the one that runs and the one behind it."""

_INTERVALS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
"""From a small model on a GPU to a large one on a CPU; narrow where people begin to notice."""


@define
class EngineLoopStatistics:
    """Counts since the start, and what is alive now.

    Attributes:
        steps: Hops to the decode thread.
        outputs: Outputs handed on.
        pauses: Times a generation was paused since its reader was slow.
        generations: Generations alive.
        paused: Those of them that are paused.
        running: Those of them that the next steps should bring something for.
        computed_tokens: Tokens run through the model.
        engine: What the engine said of itself after the last step; None before the first.
    """

    steps: int = 0
    outputs: int = 0
    pauses: int = 0
    generations: int = 0
    paused: int = 0
    running: int = 0
    computed_tokens: int = 0
    engine: EngineStatistics | None = None


class Generation:
    """The reader's end of one generation; made by `EngineLoop.submit`, to be used in a ``with`` block.

    Resource handling: leaving the block before the last output cancels the generation in the engine.
    """

    def __init__(self, loop: EngineLoop, id: int, buffer_outputs: int) -> None:  # noqa: A002
        self.id = id
        self._loop = loop
        self._capacity = buffer_outputs
        self._buffer: deque[SequenceOutput] = deque()
        self._failure: Exception | None = None
        self._news = trio.lowlevel.ParkingLot()
        self._hear: Callable[[], None] | None = None
        self._ended = False
        self._full = False
        self._held = False
        self._paused = False
        self._throttled = False
        self._last_output_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop._forget(self)  # noqa: SLF001 - two halves of one thing, in one file

    @property
    def is_paused(self) -> bool:
        """Whether the engine has been told to leave it out."""
        return self._paused

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been paused."""
        return not (self._ended or self._paused)

    @property
    def buffered(self) -> int:
        """Outputs that wait to be received."""
        return len(self._buffer)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes beyond what waits to be received."""
        return self._ended

    def heard_by(self, hear: Callable[[], None]) -> None:
        """Has ``hear`` called whenever something has come, an end included; it must not fail."""
        self._hear = hear

    def take(self, at_most: int) -> list[SequenceOutput]:
        """Receives what waits, without waiting; so many outputs and no more."""
        count = min(at_most, len(self._buffer))
        outputs = [self._buffer.popleft() for _ in range(count)]
        self._note_taken()
        return outputs

    async def receive(self) -> SequenceOutput:
        """Waits for the next output; the one with ``finish`` is the last.

        Raises:
            EngineStopped: The engine is gone.
            EngineError: The engine refused this request when it was to be added.

        If cancelled, no output is lost.
        """
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            await self._news.park()
        await trio.lowlevel.checkpoint_if_cancelled()
        output = self._buffer.popleft()
        self._note_taken()
        return output

    def _note_taken(self) -> None:
        if self._full and len(self._buffer) <= self._capacity // 4:
            self._full = False
            self._settle()

    def cancel(self) -> None:
        """Asks the engine to end it; an output with reason CANCELLED follows unless it has ended."""
        if not self._ended:
            self._loop._tell(self.id, lambda engine: engine.cancel(self.id))  # noqa: SLF001

    def throttle(self, on: bool) -> None:
        """Asks the engine to decode it in every other step only, or in every one again."""
        if not self._ended and on is not self._throttled:
            self._throttled = on
            self._loop._tell(self.id, lambda engine: engine.throttle(self.id, on), is_timed=on)  # noqa: SLF001

    def hold(self, on: bool) -> None:
        """Asks the engine to leave it out of all further steps, whatever room its buffer has, or no more."""
        self._held = on
        self._settle()

    def _settle(self) -> None:
        """Tells the engine where what it was told isn't so any more."""
        if self._ended or self._paused is (self._full or self._held):
            return
        self._paused = not self._paused
        if self._paused:
            self._last_output_s = None  # what its reader holds up says nothing of the engine
            self._loop._note_pause()  # noqa: SLF001
            self._loop._tell(self.id, lambda engine: engine.pause(self.id), is_timed=True)  # noqa: SLF001
        else:
            self._loop._tell(self.id, lambda engine: engine.resume(self.id))  # noqa: SLF001

    def _put(self, output: SequenceOutput, now_s: float) -> None:
        if output.token_ids:
            if self._last_output_s is not None:
                self._loop.token_intervals.add(now_s - self._last_output_s)
            self._last_output_s = None if self._paused else now_s
        assert len(self._buffer) < self._capacity, "a paused sequence went on producing"  # noqa: S101
        self._ended = output.finish is not None
        self._buffer.append(output)
        self._wake()
        if len(self._buffer) >= self._capacity // 2:
            self._full = True
            self._settle()

    def _fail(self, failure: Exception) -> None:
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        if self._news:
            self._news.unpark_all()
        if self._hear is not None:
            self._hear()


class EngineLoop:
    """Runs an engine on an executor and fans its outputs out.

    Args:
        engine: The engine; from here on only the executor's thread touches it, but for ``check``.
        executor: Where the engine runs.
        buffer_outputs: Outputs that one generation may hold back before the engine pauses it, twice over.
        stall_timeout_s: A step longer than this is reported by `trouble`.
        idle_check_s: When there has been nothing to do for so long, the engine compares its books, once; a
            bug found there stops the engine before it can mix up two requests. 0 for never.
        clock: Monotonic seconds, read on the executor's thread too.

    Attributes:
        decision_times: How long the engine took to heed what a reader asked for.
        token_intervals: Seconds between two outputs of a generation, unless its reader held it up.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        executor: PipelineExecutor,
        *,
        buffer_outputs: int,
        stall_timeout_s: float,
        idle_check_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.decision_times = DecisionTimes()
        self.token_intervals = Distribution(_INTERVALS_S)
        self._engine = engine
        self._executor = executor
        self._buffer_outputs = buffer_outputs
        self._stall_timeout_s = stall_timeout_s
        self._idle_check_s = idle_check_s
        self._clock = clock
        self._free_s = clock()
        self._ids = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._commands: deque[Command] = deque()  # filled on the loop, emptied on the thread
        self._hops: deque[Job[StepResult]] = deque()
        self._is_over = False
        self._wake = trio.Event()
        self._failure: EngineStopped | None = None
        self._step_began_s: float | None = None
        self._counts = EngineLoopStatistics()

    @property
    def failure(self) -> EngineStopped | None:
        """What stopped the engine, or None while it runs."""
        return self._failure

    def trouble(self) -> str | None:
        """Why the engine can't serve just now, one line, or None: stopped, or stuck in a step."""
        if self._failure is not None:
            return str(self._failure)
        if self._step_began_s is not None:
            lasted = trio.current_time() - self._step_began_s
            if lasted > self._stall_timeout_s:
                return f"the engine has been in one step for {lasted:.0f} s"
        return None

    def statistics(self) -> EngineLoopStatistics:
        """Counts so far; the object is live but for the gauges, which are taken now."""
        self._counts.generations = len(self._generations)
        self._counts.paused = sum(generation.is_paused for generation in self._generations.values())
        self._counts.running = sum(generation.is_running for generation in self._generations.values())
        return self._counts

    def submit(self, make_request: Callable[[int], GenerationRequest]) -> Generation:
        """Queues a request; it joins the batch with the next step.

        Args:
            make_request: Builds the request for the id given.

        Raises:
            EngineStopped: The engine takes no more work.
        """
        if self._failure is not None:
            raise EngineStopped(self._failure.cause)
        generation = Generation(self, next(self._ids), self._buffer_outputs)
        request = make_request(generation.id)
        self._generations[generation.id] = generation
        self._tell(generation.id, lambda engine: engine.add(request))
        return generation

    async def run(self) -> None:
        """Steps the engine for ever; returns only if it failed. A cancellation takes effect between steps."""
        has_work = False
        try:
            while True:
                if not self._hops and not has_work and not self._commands:
                    await self._be_idle()
                while len(self._hops) < (_AHEAD if has_work else 1):
                    self._hops.append(self._executor.submit(self._hop))
                await trio.lowlevel.checkpoint_if_cancelled()
                self._step_began_s = trio.current_time()
                result = await self._hops.popleft().wait()
                self._step_began_s = None
                has_work = result.has_work
                self._note(result)
                self._hand_on(result)
        except Exception as error:  # noqa: BLE001 - whatever broke it, or its books are wrong: the engine is gone
            self._stop(error)
        finally:
            self._is_over = True
            self._step_began_s = None
            for hop in self._hops:  # as long as a step takes, as for the one before
                with suppress(Exception):
                    await hop.wait()
            self._hops.clear()

    def _hop(self) -> StepResult:
        """On the thread. Once the loop is over the engine isn't touched any more."""
        if self._is_over:
            raise EngineStopped("the loop is over")
        try:
            return advance(self._engine, self._commands, self._clock)
        except BaseException:
            self._is_over = True  # before the hop behind this one begins
            raise

    async def _be_idle(self) -> None:
        self._wake = trio.Event()
        if self._idle_check_s:
            with trio.move_on_after(self._idle_check_s):
                await self._wake.wait()
                return
            await self._executor.call(self._engine.check_integrity)
        await self._wake.wait()

    def _note(self, result: StepResult) -> None:
        self._counts.steps += 1
        self._counts.computed_tokens = result.statistics.computed_tokens
        self._counts.engine = result.statistics
        for heeded, free_s in ((result.before, self._free_s), (result.after, result.ended_s)):
            for asked_s in heeded.asked_s:
                self.decision_times.add(asked_s=asked_s, free_s=free_s, decided_s=heeded.decided_s)
        self._free_s = result.ended_s

    def _hand_on(self, result: StepResult) -> None:
        now_s = trio.current_time()
        for id_, error in result.rejected:
            if (generation := self._generations.get(id_)) is not None:
                generation._fail(error)  # noqa: SLF001 - two halves of one thing, as below
        for output in result.outputs:
            generation = self._generations.get(output.id)
            if generation is None:
                continue  # its reader left; the engine drops it with the next step
            self._counts.outputs += 1
            generation._put(output, now_s)  # noqa: SLF001

    def _tell(self, id_: int, act: Callable[[GenerationEngine], None], *, is_timed: bool = False) -> None:
        if self._failure is not None:
            return  # nobody is left to be told
        self._commands.append(Command(id_, act, self._clock() if is_timed else None))
        self._wake.set()

    def _note_pause(self) -> None:
        self._counts.pauses += 1

    def _forget(self, generation: Generation) -> None:
        if self._generations.pop(generation.id, None) is not None:
            generation.cancel()

    def _stop(self, error: Exception) -> None:
        _log.error("engine stopped", exc_info=error, generations=len(self._generations))
        self._failure = EngineStopped(f"{type(error).__name__}: {error}")
        self._commands.clear()
        for generation in self._generations.values():
            generation._fail(EngineStopped(self._failure.cause))  # noqa: SLF001

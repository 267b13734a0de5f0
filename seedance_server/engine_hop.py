"""One hop to the decode thread and back: what it takes along, what it brings, what the engine must offer.

A hop fetches the commands that gathered since the one before, does one step, and returns what came of it.
What was asked for during the step is heeded as soon as it ends, before anything else may have the
interpreter. It runs on the executor's thread, so it sees the engine and nothing else.

It must not know trio, clients or who waits for what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

from seedance_server.engine.engine_statistics import EngineStatistics
from seedance_server.engine.errors import EngineError
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, SequenceOutput

__all__ = ["Command", "GenerationEngine", "Heeded", "StepResult", "advance"]


class GenerationEngine(Protocol):
    """What an engine offers; all but `check` is called on the decode thread only."""

    def check(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Raises an EngineError if such a request can never run; callable from any thread."""

    def add(self, request: GenerationRequest) -> None:
        """Takes a request into the queue."""

    def cancel(self, request_id: int, /) -> None:
        """Lets the next step end it with reason CANCELLED; unknown ids are ignored, as below."""

    def pause(self, request_id: int, /) -> None:
        """Takes it out of the batch from the next step on; its KV stays."""

    def resume(self, request_id: int, /) -> None:
        """Takes it back into the batch."""

    def throttle(self, request_id: int, on: bool, /) -> None:
        """Lets it take part in every other step only, or in every one again."""

    def statistics(self) -> EngineStatistics:
        """Its sequences, its KV pool and its counts, as they are now."""

    def check_integrity(self) -> None:
        """Compares its own books; raises AssertionError where they disagree. Called when there is no work."""

    def has_work(self) -> bool:
        """Whether a step would do or report anything; a cancel is always to be reported, a pause is not."""

    def step(self) -> Sequence[SequenceOutput]:
        """Decodes one step; at most one output for each id, the last of an id with ``finish``."""


@frozen
class Command:
    """One thing to tell the engine before its next step; with when it was asked for, to time it."""

    id: int
    act: Callable[[GenerationEngine], None]
    asked_s: float | None = None


@frozen
class Heeded:
    """Commands that the engine was told together: when the timed ones were asked for, when it had them."""

    asked_s: Sequence[float]
    decided_s: float


@frozen
class StepResult:
    """What a hop brought; times are of the loop's clock.

    Attributes:
        outputs: Of the step.
        rejected: Requests that the engine refused, with why.
        has_work: Whether another step would do or report anything.
        statistics: How the engine stands.
        before: Commands heeded before the step.
        after: Commands heeded after it.
        ended_s: When the step ended.
    """

    outputs: Sequence[SequenceOutput]
    rejected: Sequence[tuple[int, Exception]]
    has_work: bool
    statistics: EngineStatistics
    before: Heeded
    after: Heeded
    ended_s: float


def advance(engine: GenerationEngine, commands: deque[Command], clock: Callable[[], float]) -> StepResult:
    """One hop, on the decode thread. A request that can't be added fails alone, all else ends the engine.

    Args:
        engine: The engine.
        commands: What to tell it, in order; emptied. Others may go on filling it on another thread.
        clock: Monotonic seconds.
    """
    rejected: list[tuple[int, Exception]] = []
    before = _heed(engine, commands, rejected, clock)
    outputs = engine.step() if engine.has_work() else ()
    ended_s = clock()
    after = _heed(engine, commands, rejected, clock)
    return StepResult(outputs, rejected, engine.has_work(), engine.statistics(), before, after, ended_s)


def _heed(
    engine: GenerationEngine,
    commands: deque[Command],
    rejected: list[tuple[int, Exception]],
    clock: Callable[[], float],
) -> Heeded:
    asked_s: list[float] = []
    while commands:
        command = commands.popleft()
        if command.asked_s is not None:
            asked_s.append(command.asked_s)
        try:
            command.act(engine)
        except EngineError as error:
            rejected.append((command.id, error))
    return Heeded(asked_s, clock())

"""One comparison: all engines loaded, one awake at a time, levels in turns, round after round.

The order of the engines within a level changes from round to round, so that none always follows the same one
onto a machine that it has warmed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias

from attrs import define, field, frozen

from engine.comparison import ARRIVALS, BURST, OURS, Measured
from engine.engine_process import EngineProcess, attached, running
from engine.measurement import (
    MeasurementFailed,
    arrivals,
    burst,
    figures_of_arrivals,
    figures_of_burst,
    medians,
)
from engine.peer import Peer
from engine.workload import Tokenize, poisson_times, text_request
from engine.workload import burst as burst_requests

__all__ = ["Attachment", "Plan", "Results", "compare", "order", "take"]

# Residents answer for so long that many others arrive meanwhile.
RESIDENT_TOKENS = 128
# Long enough for a text to begin to repeat itself.
TEXT_TOKENS = 128
# A single stream is over in a second and its first token comes but once, so it is asked for as often.
TURNS = 4
# Longer than any engine takes for the residents; what is left over is not sent.
ARRIVALS_SPAN_S = 60.0


Job: TypeAlias = Callable[[EngineProcess], Awaitable[Measured]]


@frozen
class Attachment:
    """A server that somebody else started.

    Attributes:
        port: Where it listens.
        group: Its process group.
    """

    port: int
    group: int


@frozen
class Plan:
    """What is measured.

    Attributes:
        model: Directory of the model.
        cores: Processors for servers and client alike.
        levels: Numbers of streams for bursts.
        arrival_levels: Numbers of residents for arrivals.
        texts: Kinds of text for a single stream, of `workload.TEXTS`.
        arrival_rate: Arrivals a second.
        rounds: Times through all of it.
        first_round: The number of the first round: later ones don't repeat the prompts of earlier runs.
        prompt_tokens: Tokens of each prompt.
        max_tokens: Tokens of each answer in a burst.
        attachments: Servers that run already, by the name of their peer.
        every_level: Whether peers are measured at levels for which no target names them, too.
    """

    model: Path
    cores: Sequence[int]
    levels: Sequence[int]
    arrival_levels: Sequence[int]
    texts: Sequence[str]
    arrival_rate: float
    rounds: int
    first_round: int
    prompt_tokens: int
    max_tokens: int
    attachments: Mapping[str, Attachment]
    every_level: bool = False

    def includes(self, peer: Peer, streams: int) -> bool:
        """Whether a peer is measured at a level."""
        return self.every_level or not peer.levels or streams in peer.levels


@define
class Results:
    """What a run has brought so far.

    Attributes:
        measured: In the order in which it was measured.
        engines: Those that ran, by the name of their peer.
        failures: What peers couldn't do, a line each.
    """

    measured: list[Measured] = field(factory=list)
    engines: dict[str, EngineProcess] = field(factory=dict)
    failures: list[str] = field(factory=list)


def order(names: Sequence[str], number: int) -> list[str]:
    """Return the engines in the order of this round: each in turn goes first."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


async def _measure_burst(
    plan: Plan, streams: int, number: int, tokenize: Tokenize, engine: EngineProcess
) -> Measured:
    figures = []
    for turn in range(max(1, TURNS // streams)):
        name = f"burst {number}.{turn}"
        requests = burst_requests(name, streams, plan.prompt_tokens, plan.max_tokens, tokenize)
        answers = await burst(engine.peer.connect(engine.port), requests)
        figures.append(figures_of_burst(answers, plan.max_tokens))
    return Measured(engine.peer.name, BURST, streams, number, medians(figures))


async def _measure_arrivals(
    plan: Plan, streams: int, number: int, tokenize: Tokenize, engine: EngineProcess
) -> Measured:
    residents = burst_requests(f"stay {number}", streams, plan.prompt_tokens, RESIDENT_TOKENS, tokenize)
    times_s = poisson_times(f"times {number}", plan.arrival_rate, ARRIVALS_SPAN_S)
    newcomers = burst_requests(f"come {number}", len(times_s), plan.prompt_tokens, plan.max_tokens, tokenize)
    found = await arrivals(engine.peer.connect(engine.port), residents, newcomers, times_s)
    return Measured(engine.peer.name, ARRIVALS, streams, number, figures_of_arrivals(found, RESIDENT_TOKENS))


async def _measure_text(kind: str, number: int, engine: EngineProcess) -> Measured:
    answers = await burst(engine.peer.connect(engine.port), [text_request(kind, number, TEXT_TOKENS)])
    return Measured(engine.peer.name, kind, 1, number, figures_of_burst(answers, TEXT_TOKENS))


async def _warm(engine: EngineProcess, name: str, plan: Plan, tokenize: Tokenize, streams: int) -> None:
    """Let it fault in what the others pushed out, before the clock runs."""
    requests = burst_requests(f"warm {name}", streams, plan.prompt_tokens, 4, tokenize)
    await burst(engine.peer.connect(engine.port), requests)


def _jobs(plan: Plan, number: int, tokenize: Tokenize) -> list[tuple[str, int, Job]]:
    """Return what is measured in this round: its mode, its level, and how."""
    level = (number, tokenize)
    return [
        *((BURST, streams, partial(_measure_burst, plan, streams, *level)) for streams in plan.levels),
        *(
            (ARRIVALS, count, partial(_measure_arrivals, plan, count, *level))
            for count in plan.arrival_levels
        ),
        *((kind, 1, partial(_measure_text, kind, number)) for kind in plan.texts),
    ]


async def take(job: Job, engine: EngineProcess, results: Results) -> str:
    """Measure once; return the figures in a line, or why a peer has none.

    Raises:
        MeasurementFailed: A request to ours failed.
    """
    try:
        result = await job(engine)
    except MeasurementFailed as failure:
        if engine.peer.name in OURS:
            raise
        results.failures.append(f"{engine.peer.title}: {failure}")
        return f"FAILED: {failure}"
    results.measured.append(result)
    return ", ".join(f"{key} {value:.1f}" for key, value in result.figures.items())


async def compare(
    peers: Sequence[Peer],
    plan: Plan,
    tokenize: Tokenize,
    report: Callable[[str], None],
    results: Results,
) -> None:
    """Start every engine, measure, stop those that it started.

    Args:
        peers: The engines.
        plan: What to measure.
        tokenize: The model's tokenizer.
        report: Gets a line for each thing done.
        results: Gets what was measured as soon as it was, so that a run that is stopped is of use.

    Raises:
        StartFailed: A server did not start.
        MeasurementFailed: A request to ours failed; a peer that fails at a level has no figures there.
    """
    os.sched_setaffinity(0, plan.cores)
    logs = Path(tempfile.mkdtemp(prefix="seedance-bench-"))
    async with AsyncExitStack() as stack:
        for peer in peers:
            if (there := plan.attachments.get(peer.name)) is not None:
                engine = attached(peer, there.port, there.group)
                engine.wake()
            else:
                report(f"starting {peer.title} …")
                log_path = logs / f"{peer.name}.log"
                engine = await stack.enter_async_context(running(peer, plan.model, plan.cores, log_path))
                report(f"{peer.title} is ready after {engine.start_s:.1f} s")
            await _warm(engine, f"start {plan.first_round}", plan, tokenize, 8)
            engine.hold()
            results.engines[peer.name] = engine
        for number in range(plan.first_round, plan.first_round + plan.rounds):
            for mode, streams, job in _jobs(plan, number, tokenize):
                for name in order(list(results.engines), number):
                    engine = results.engines[name]
                    if not plan.includes(engine.peer, streams):
                        continue
                    engine.wake()
                    await _warm(engine, f"{number} {streams} {mode}", plan, tokenize, 1)
                    line = await take(job, engine, results)
                    engine.hold()
                    report(f"round {number}, {mode} {streams}, {engine.peer.title}: {line}")

"""Drives one engine through one level and condenses what its clients saw.

A burst is N requests at once. Arrivals are N residents that are read throughout while others keep arriving:
only the residents' gaps count, and only while all of them are decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

import attrs
import trio
from attrs import frozen

from engine.peer import Ask, Connect
from engine.workload import Request
from figures import Answer, percentile
from seedance_sdk import StageTiming

__all__ = [
    "STAGES",
    "Arrivals",
    "MeasurementFailed",
    "arrivals",
    "burst",
    "figures_of_arrivals",
    "figures_of_burst",
    "medians",
]

Figures = dict[str, float]
STAGES = (*(field.name for field in attrs.fields(StageTiming)), "client_ms")
"""Of the time to the first token, as the server tells them; last what is left of the client's own count."""


class MeasurementFailed(Exception):  # noqa: N818 - what happened
    """A request of a level was not answered whole, so the level has no figures."""


@frozen
class Arrivals:
    """What came of residents and arrivals.

    Attributes:
        residents: Their answers.
        arrived: The answers of those that came later.
    """

    residents: list[Answer]
    arrived: list[Answer]


async def burst(connect: Connect, requests: Sequence[Request]) -> list[Answer]:
    """Ask all at once and return every answer."""
    answers: list[Answer] = []

    async def one(ask: Ask, request: Request) -> None:
        answers.append(await ask(request))

    async with connect(len(requests)) as asks, trio.open_nursery() as nursery:
        for ask, request in zip(asks, requests, strict=True):
            nursery.start_soon(one, ask, request)
    return answers


async def arrivals(
    connect: Connect, residents: Sequence[Request], newcomers: Sequence[Request], times_s: Sequence[float]
) -> Arrivals:
    """Ask all residents at once, and each newcomer at its time after that.

    Once the residents are done, newcomers that have not been sent are not sent any more.
    """
    found = Arrivals([], [])

    async def one(ask: Ask, request: Request, to: list[Answer]) -> None:
        to.append(await ask(request))

    async with connect(len(residents) + len(newcomers)) as asks, trio.open_nursery() as others:
        async with trio.open_nursery() as nursery:
            for ask, request in zip(asks, residents, strict=False):
                nursery.start_soon(one, ask, request, found.residents)
            others.start_soon(_arrive, asks[len(residents) :], newcomers, times_s, found.arrived)
        others.cancel_scope.cancel()
    return found


async def _arrive(
    asks: Sequence[Ask], newcomers: Sequence[Request], times_s: Sequence[float], to: list[Answer]
) -> None:
    started = trio.current_time()

    async def one(ask: Ask, request: Request) -> None:
        to.append(await ask(request))

    async with trio.open_nursery() as nursery:
        for ask, request, time_s in zip(asks, newcomers, times_s, strict=True):
            await trio.sleep_until(started + time_s)
            nursery.start_soon(one, ask, request)


def _whole(answers: Sequence[Answer], tokens: int) -> None:
    for answer in answers:
        if answer.error is not None:
            raise MeasurementFailed(answer.error)
        if answer.tokens != tokens:
            raise MeasurementFailed(f"{answer.tokens} tokens instead of {tokens}")


def figures_of_burst(answers: Sequence[Answer], tokens: int) -> Figures:
    """Return tokens a second over the whole burst, and times in milliseconds.

    Args:
        answers: All of one burst.
        tokens: What each must have.

    Raises:
        MeasurementFailed: An answer failed or fell short.
    """
    _whole(answers, tokens)
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    firsts = [answer.first_token_s for answer in answers]
    # A piece may hold several tokens; over a whole answer it is all the same how they were packed.
    per_token = [(answer.ended_s - answer.arrivals_s[0]) / max(1, tokens - 1) for answer in answers]
    spent_s = max(answer.ended_s for answer in answers) - min(answer.started_s for answer in answers)
    return {
        "tokens_per_s": len(answers) * tokens / spent_s,
        "tpot_p50_ms": 1e3 * percentile(per_token, 0.5),
        "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts, 0.99),
        # Gaps between pieces of several tokens are no gaps between tokens.
        "tokens_per_piece": len(answers) * tokens / sum(len(answer.arrivals_s) for answer in answers),
        **_stages(answers),
    }


def _stages(answers: Sequence[Answer]) -> Figures:
    """Means of the stages of the time to the first token, which add up to its mean; none if none are told."""
    timings = [answer.timing for answer in answers if answer.timing is not None]
    if len(timings) < len(answers):
        return {}
    *told, rest = STAGES
    stages = {name: fmean(getattr(timing, name) for timing in timings) for name in told}
    ttft = 1e3 * fmean(answer.first_token_s for answer in answers)
    return {**stages, rest: ttft - sum(stages.values()), "ttft_mean_ms": ttft}


def medians(figures: Sequence[Figures]) -> Figures:
    """Condense what was measured several times within a round."""
    return {name: median(each[name] for each in figures) for name in figures[0]}


def figures_of_arrivals(found: Arrivals, tokens: int) -> Figures:
    """Return the residents' gaps while all of them were decoding, and how those that arrived fared, in ms.

    Raises:
        MeasurementFailed: A resident failed or fell short, or an arrival failed.
    """
    _whole(found.residents, tokens)
    for answer in found.arrived:
        if answer.error is not None:
            raise MeasurementFailed(answer.error)
    begin_s = max(answer.arrivals_s[0] for answer in found.residents)
    end_s = min(answer.ended_s for answer in found.residents)
    gaps = [
        later - earlier
        for answer in found.residents
        for earlier, later in zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
        if earlier >= begin_s and later <= end_s
    ]
    firsts = [answer.first_token_s for answer in found.arrived]
    p50, p99 = percentile(gaps, 0.5), percentile(gaps, 0.99)
    figures = {
        "itl_p50_ms": 1e3 * p50,
        "itl_p99_ms": 1e3 * p99,
        "itl_p99_to_p50": p99 / p50,
        "arrived": float(len(found.arrived)),
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
    }
    return {name: value for name, value in figures.items() if not math.isnan(value)}

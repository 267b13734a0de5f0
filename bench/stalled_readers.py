"""A hundred readers that stand still beside twenty good ones: does anybody but themselves notice?

In turns, in one run: the good ones alone, then beside readers that took a few pieces and no more. The
server's memory is read all the while. Afterwards the standing ones read on, to the end, and every piece of
every answer is compared with what it must be: nothing may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest
from statistics import median
from typing import Any

import trio
from attrs import define, field

from figures import Answer, ask, percentile
from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient, AsyncStream
from server_process import RunningServer

__all__ = ["Readers", "measure_stalled"]

PER_CONNECTION = 25
TAKEN = 3
"""Pieces that a standing reader takes before it stands."""
SETTLE_S = 3.0
"""By then the windows of the standing ones are full: 32 frames, at half speed from the 24th on."""
SAMPLE_S = 0.25


@define
class Readers:
    """What is to be run.

    Attributes:
        good: Readers that take each piece at once.
        stalled: Readers that stand still.
        pieces: Pieces of each answer.
        rounds: Turns with and without the standing ones.
    """

    good: int
    stalled: int
    pieces: int
    rounds: int


@define
class _Turn:
    stalled: int
    answers: list[Answer] = field(factory=list)
    memory: list[tuple[float, int]] = field(factory=list)
    missing: int = 0


def measure_stalled(server: RunningServer, readers: Readers, report: Callable[[str], None]) -> dict[str, Any]:
    """Run all turns; returns the figures, in milliseconds and bytes."""
    turns: list[_Turn] = []
    trio.run(_good_turn, server, readers, _Turn(0))  # pays for what is set up lazily: not counted
    for number in range(readers.rounds):
        for stalled in (0, readers.stalled):
            report(f"round {number + 1}: {readers.good} good readers beside {stalled} that stand still …")
            turn = _Turn(stalled)
            trio.run(_turn, server, readers, turn)
            turns.append(turn)
    alone, beside = (
        _gaps([turn for turn in turns if bool(turn.stalled) is with_]) for with_ in (False, True)
    )
    held = [turn for turn in turns if turn.stalled]
    by_turn = [_gaps([turn])[0]["p50"] for turn in turns]
    ratios = [second / first for first, second in zip(by_turn[::2], by_turn[1::2], strict=True)]
    return {
        "good": readers.good,
        "stalled": readers.stalled,
        "rounds": readers.rounds,
        "itl_ms": {"alone": alone[0], "beside": beside[0]},
        "itl_ratio_mean": round(_mean(beside[1]) / _mean(alone[1]), 4),
        "itl_ratio_by_round_p50": [round(ratio, 4) for ratio in ratios],
        "itl_ratio_median_p50": round(median(ratios), 4),
        "frames_missing": sum(turn.missing for turn in turns),
        "memory_bytes": [
            {
                "first": turn.memory[0][1],
                "last": turn.memory[-1][1],
                "most": max(rss for _, rss in turn.memory),
            }
            for turn in held
        ],
        "memory_over_time": [[(round(at_s, 2), rss) for at_s, rss in turn.memory] for turn in held],
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _gaps(turns: list[_Turn]) -> tuple[dict[str, float], list[float]]:
    gaps = [gap for turn in turns for answer in turn.answers for gap in answer.gaps_s]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    figures = {name: round(percentile(gaps, share) * 1e3, 2) for name, share in shares.items()}
    return {**figures, "mean": round(_mean(gaps) * 1e3, 2), "count": len(gaps)}, gaps


async def _turn(server: RunningServer, readers: Readers, turn: _Turn) -> None:
    go_on = trio.Event()
    async with trio.open_nursery() as nursery:
        for first in range(0, turn.stalled, PER_CONNECTION):
            count = min(PER_CONNECTION, turn.stalled - first)
            nursery.start_soon(_stalled_connection, server.url, count, readers.pieces, go_on, turn)
        if turn.stalled:
            await trio.sleep(SETTLE_S)
        with trio.CancelScope() as sampling:
            nursery.start_soon(_sample, server, turn, sampling)
            await _good_turn(server, readers, turn)
            sampling.cancel()
        go_on.set()


async def _sample(server: RunningServer, turn: _Turn, scope: trio.CancelScope) -> None:
    began_s = time.monotonic()
    while not scope.cancel_called:
        turn.memory.append((time.monotonic() - began_s, server.memory_bytes()))
        await trio.sleep(SAMPLE_S)


async def _good_turn(server: RunningServer, readers: Readers, turn: _Turn) -> None:
    async def one(client: AsyncSeedanceClient) -> None:
        answer = await ask(client, _request(readers.pieces))
        turn.answers.append(answer)
        turn.missing += _missing(answer.text, readers.pieces)

    async with AsyncSeedanceClient(server.url) as client, trio.open_nursery() as nursery:
        for _ in range(readers.good):
            nursery.start_soon(one, client)


async def _stalled_connection(url: str, count: int, pieces: int, go_on: trio.Event, turn: _Turn) -> None:
    async def one(client: AsyncSeedanceClient) -> None:
        async with await client.complete(**_request(pieces), stream=True) as stream:
            text = await _take(stream, TAKEN)
            await go_on.wait()
            text += await _take(stream, None)
        turn.missing += _missing(text, pieces)

    async with AsyncSeedanceClient(url) as client, trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one, client)


async def _take(stream: AsyncStream, count: int | None) -> str:
    """So many pieces, or all that are left."""
    text, taken = "", 0
    while taken != count and (chunk := await stream.receive()) is not None:
        text += chunk.delta
        taken += 1
    return text


def _request(pieces: int) -> dict[str, Any]:
    return {"prompt": "Count.", "max_tokens": pieces}


def _missing(text: str, pieces: int) -> int:
    """Pieces that aren't where they must be."""
    got = text.split(" ")
    return sum(want.strip() != have for want, have in zip_longest(numbers(pieces), got[:-1], fillvalue=""))

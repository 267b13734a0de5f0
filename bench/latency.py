"""What the SDK's latency figures cost: time for each token, for a report, and memory.

Answers are made from a seed: gaps are lognormal with one long one in a hundred. Their frames are told to
`AnswerTimes` as the client tells them, so that all is counted: buffer, sketches, histogram, lock. A sketch
fed value by value, without a buffer, is measured beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddsketch import LogCollapsingLowestDenseDDSketch

from seedance_sdk import LatencyObservatory
from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.latency_series import Outcome
from seedance_sdk.latency_sketch import MAX_BUCKETS, RELATIVE_ACCURACY

__all__ = ["main"]

ANSWER = 128
"""Tokens of an answer."""


def _arrivals(count: int, seed: int) -> list[float]:
    """When each token comes, in seconds."""
    dice = random.Random(seed)
    now_s, arrivals = 0.0, []
    for _ in range(count):
        now_s += dice.lognormvariate(-3.6, 0.5) * (20 if dice.random() < 0.01 else 1)
        arrivals.append(now_s)
    return arrivals


def _tell(observatory: LatencyObservatory, arrivals: Sequence[float], tokens_per_frame: int) -> None:
    """Tells of answers, one after the other, a frame at a time."""
    series = observatory.endpoint("ws://bench").series(canary=False)
    for start in range(0, len(arrivals), ANSWER):
        times = AnswerTimes(lambda: series, arrivals[start] - 0.1)
        for frame_id, now_s in enumerate(arrivals[start : start + ANSWER : tokens_per_frame], 1):
            times.arrived(frame_id, tokens_per_frame, now_s)
        times.ended(Outcome.FINISHED)


def _microseconds_a_token(arrivals: Sequence[float], tokens_per_frame: int) -> float:
    observatory = LatencyObservatory()
    started = time.perf_counter()
    _tell(observatory, arrivals, tokens_per_frame)
    return (time.perf_counter() - started) / len(arrivals) * 1e6


def _microseconds_unbuffered(arrivals: Sequence[float]) -> float:
    sketch = LogCollapsingLowestDenseDDSketch(RELATIVE_ACCURACY, MAX_BUCKETS)
    started = time.perf_counter()
    earlier_s = 0.0
    for now_s in arrivals:
        sketch.add(now_s - earlier_s)
        earlier_s = now_s
    return (time.perf_counter() - started) / len(arrivals) * 1e6


def _report_ms(observatory: LatencyObservatory) -> float:
    started = time.perf_counter()
    observatory.report()
    return (time.perf_counter() - started) * 1e3


def _kilobytes(arrivals: Sequence[float]) -> float:
    tracemalloc.start()
    observatory = LatencyObservatory()
    _tell(observatory, arrivals, 1)
    observatory.report()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and writes JSON if asked; status 1 if a token costs more than the goal."""
    parser = argparse.ArgumentParser(prog="bench latency", description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_072, help="in each run")
    parser.add_argument("--runs", type=int, default=9, help="least, median and greatest are told")
    parser.add_argument("--seed", type=int, default=1, help="of the answers")
    parser.add_argument("--goal-us", type=float, default=2.0, help="for a token, by the median")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    arrivals = _arrivals(arguments.tokens, arguments.seed)
    runs = range(arguments.runs)
    told = LatencyObservatory()
    _tell(told, arrivals, 1)
    figures: dict[str, Any] = {
        "a token, one in each frame, µs": sorted(_microseconds_a_token(arrivals, 1) for _ in runs),
        "a token, four in each frame, µs": sorted(_microseconds_a_token(arrivals, 4) for _ in runs),
        "a sketch alone, fed one by one, µs": sorted(_microseconds_unbuffered(arrivals) for _ in runs),
        "a report, ms": sorted(_report_ms(told) for _ in runs),
        "memory of one endpoint, KiB": sorted(_kilobytes(arrivals[:size]) for size in (4096, len(arrivals))),
    }
    print(f"{arguments.tokens:,} tokens a run, Python {platform.python_version()}, one thread")
    print(f"{'':36} {'least':>8} {'median':>8} {'most':>8}")
    for name, values in figures.items():
        print(f"{name:36} {values[0]:8.2f} {statistics.median(values):8.2f} {values[-1]:8.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    return int(statistics.median(figures["a token, one in each frame, µs"]) > arguments.goal_us)


if __name__ == "__main__":
    raise SystemExit(main())

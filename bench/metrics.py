"""What being watched costs: a token, a request, a span, and a scrape of a server with many tenants.

Each figure is the best of a few rounds on one thread: what the code takes, not what a busy machine makes of
it. A token is what the engine's loop does for each output; a request is all that its observers are told from
its arrival to its end. Beside the token stands a histogram of the client library, the other way to do it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import trio
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from seedance_server.config import Config
from seedance_server.distribution import Distribution
from seedance_server.engine.sequence import StageTiming
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.metrics.requests import RequestMetrics
from seedance_server.request_log import RequestLog
from seedance_server.request_watch import Observer, Outcome, RequestWatch, Stage
from seedance_server.tenants import Tenant
from seedance_wire.messages import Usage

__all__ = ["main"]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
TENANTS = 100


def _best_s(work: Callable[[], object], times: int, rounds: int) -> float:
    """Seconds that one call takes, in the best round."""
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.perf_counter()
        for _ in range(times):
            work()
        best_s = min(best_s, (time.perf_counter() - began_s) / times)
    return best_s


def _request(observers: Sequence[Observer]) -> None:
    watch = RequestWatch(observers, time.monotonic, tenant="t", session="s", stream_id=1)
    for stage in (Stage.PREPARED, Stage.COMMITTED, Stage.TURN, Stage.FIRST_WRITTEN):
        watch.reach(stage)
    watch.note_timing(StageTiming(queue_s=0.01, preprocess_s=0.001, prefill_s=0.05, first_decode_s=0.002))
    watch.usage = Usage(prompt_tokens=100, completion_tokens=64)
    watch.end(Outcome.STOP)


def _quietly() -> None:
    """Lines are formatted as a machine has them, and go nowhere."""
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )


async def _measure(times: int, rounds: int) -> dict[str, float]:
    """Microseconds of each."""
    ours, library = Distribution(BOUNDS_S), Histogram("a_seconds", "A.", buckets=BOUNDS_S, registry=None)
    door = FrontDoor(Config(model_path="m"), Gate())
    door.house.gate.accounts.update(Tenant(name=f"t{number}") for number in range(TENANTS))
    registry = door.house.metrics.registry
    metrics = RequestMetrics(CollectorRegistry())
    figures_s = {
        "token": _best_s(lambda: ours.add(0.03), times, rounds),
        "token, by the library": _best_s(lambda: library.observe(0.03), times, rounds),
        "request, watched by nobody": _best_s(lambda: _request(()), times // 10, rounds),
        "request, counted": _best_s(lambda: _request((metrics,)), times // 10, rounds),
        "request, logged": _best_s(lambda: _request((RequestLog(),)), times // 10, rounds),
        "scrape, on the loop": _best_s(lambda: list(registry.collect()), times // 1000, rounds),
        "scrape, whole": _best_s(lambda: generate_latest(registry), times // 1000, rounds),
    }
    return {name: seconds * 1e6 for name, seconds in figures_s.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(prog="metrics", description=__doc__)
    parser.add_argument("--times", type=int, default=100_000, help="calls in a round (default: 100000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: 5)")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    _quietly()
    try:
        figures: dict[str, Any] = trio.run(_measure, options.times, options.rounds)
    finally:
        structlog.reset_defaults()
    print(f"{'what':28} {'µs':>9}")
    for name, microseconds in figures.items():
        print(f"{name:28} {microseconds:9.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures | {"machine": platform.machine()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

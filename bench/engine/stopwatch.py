"""How long things take: the parts of a step that call each other, and work by itself, over and over."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from attrs import define, field

__all__ = ["Stopwatch", "milliseconds_of"]

REPEATS = 5


@define
class Stopwatch:
    """Adds up the time of calls.

    Attributes:
        spent_s: Seconds by name since the last `take`.
    """

    spent_s: dict[str, float] = field(factory=dict)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, timed under this name."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.spent_s[name] = self.spent_s.get(name, 0.0) + time.perf_counter() - started_s

        return timed

    def take(self) -> dict[str, float]:
        """Return what was added up, and begin anew."""
        taken, self.spent_s = self.spent_s, {}
        return taken


def milliseconds_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of some work, after one pass that doesn't count."""
    work()
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return 1e3 * median(times)

"""How long the scheduler takes to heed a window: from the edge to its decision, the running step apart (S23).

A forward pass can't be interrupted, so an edge that comes during one waits for its end whatever the server
does; that wait is kept beside the rest, which is what the server is answerable for. The newest are kept.

It must not know who asked for what.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from attrs import frozen

__all__ = ["DecisionTimes", "DecisionTimesStatistics"]

_KEPT = 4096
"""Enough for a P99 of dozens of values; 100 kB."""


@frozen
class DecisionTimesStatistics:
    """Seconds, of the newest decisions; 0 without any.

    Attributes:
        count: Decisions since the start.
        p50_s: Half of them took no longer, from the edge or the end of the step that ran then.
        p99_s: 99 of 100 took no longer.
        max_s: The longest.
        step_p50_s: What of the running step was left at the edge, for half of them.
        step_p99_s: The same for 99 of 100.
    """

    count: int
    p50_s: float
    p99_s: float
    max_s: float
    step_p50_s: float
    step_p99_s: float


class DecisionTimes:
    """Takes the times of decisions; all times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._count = 0
        self._delays_s: deque[float] = deque(maxlen=_KEPT)
        self._steps_s: deque[float] = deque(maxlen=_KEPT)

    def add(self, *, asked_s: float, free_s: float, decided_s: float) -> None:
        """Notes one.

        Args:
            asked_s: When the edge came.
            free_s: When the step ended that ran last before the decision.
            decided_s: When the scheduler had it.
        """
        began_s = max(asked_s, free_s)
        self._count += 1
        self._delays_s.append(decided_s - began_s)
        self._steps_s.append(began_s - asked_s)

    def statistics(self) -> DecisionTimesStatistics:
        """What was noted so far."""
        delays_s, steps_s = sorted(self._delays_s), sorted(self._steps_s)
        return DecisionTimesStatistics(
            count=self._count,
            p50_s=_percentile(delays_s, 0.5),
            p99_s=_percentile(delays_s, 0.99),
            max_s=_percentile(delays_s, 1.0),
            step_p50_s=_percentile(steps_s, 0.5),
            step_p99_s=_percentile(steps_s, 0.99),
        )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many don't exceed: one that occurred."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

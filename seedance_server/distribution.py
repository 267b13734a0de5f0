"""How often a value fell below which bound: a histogram for what happens with every token.

Noting a value is a search among two dozen bounds and three additions; a histogram of a metrics library takes
seven times as long for its locks (`bench/metrics.py`), and tokens are what there is most of.

It must not know what is measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Distribution"]


class Distribution:
    """Counts values by bounds.

    Args:
        bounds: Upper ends, inclusive and rising; one without an end is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    @property
    def sum(self) -> float:
        """Of all values."""
        return self._sum

    @property
    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Each bound, the last one infinite, with how many values were no larger."""
        return tuple(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))

    def add(self, value: float) -> None:
        """Notes a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

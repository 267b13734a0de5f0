"""Quantiles of durations in bounded memory: a DDSketch (S32) behind a small buffer.

A value costs an append; the sketch takes what was appended when the buffer is full or somebody asks. Any
quantile is off by less than one percent of itself, whatever the distribution. Not for several threads at
once: its owner has a lock. Must not know what is measured, nor of clocks.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from functools import partial

from attrs import frozen
from ddsketch import LogCollapsingLowestDenseDDSketch
from ddsketch.mapping import LogarithmicMapping

__all__ = ["Distribution", "LatencySketch"]

RELATIVE_ACCURACY = 0.0099
"""Less than one percent with the rounding of floats; a bucket is 2 % wide, and 200 of them span 52 times."""
MAX_BUCKETS = 2048
"""They span 4e17 times: from a nanosecond to ten years. Beyond that the lowest buckets become one."""
BUFFERED = 1024
"""Values before the sketch takes them: 8 KiB. At once they cost a fraction of what they cost one by one, as
many are of one bucket; `bench/latency.py` measures both."""

_MAPPING = LogarithmicMapping(RELATIVE_ACCURACY)
_SCALE = 1 / math.log2(_MAPPING.gamma)


@frozen(kw_only=True)
class Distribution:
    """What durations were like, in milliseconds; all but ``count`` are None where there are none.

    Attributes:
        count: How many.
        mean_ms: Their mean, exact.
        min_ms: The shortest, exact.
        p50_ms: The median; this and the other quantiles within one percent of a duration that occurred.
        p90_ms: Nine of ten are no longer.
        p95_ms: 95 of 100 are no longer.
        p99_ms: 99 of 100 are no longer.
        max_ms: The longest, exact.
    """

    count: int
    mean_ms: float | None = None
    min_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class LatencySketch:
    """Durations in seconds, none of them negative.

    Args:
        bounds: Of the buckets of a histogram, ascending, in seconds; none for no histogram.

    Attributes:
        bucket_counts: Values below the first bound, from there to the second, … and from the last one up; as
            of the last `settle`.
    """

    def __init__(self, bounds: tuple[float, ...] = ()) -> None:
        self.bucket_counts = [0] * (len(bounds) + 1)
        self._bounds = bounds
        self._waiting = array("d")
        self._sketch = LogCollapsingLowestDenseDDSketch(RELATIVE_ACCURACY, MAX_BUCKETS)
        self._least, self._most, self._sum = math.inf, 0.0, 0.0

    def add(self, seconds: float) -> None:
        """Takes a duration."""
        self._waiting.append(seconds)
        if len(self._waiting) >= BUFFERED:
            self.settle()

    def settle(self) -> None:
        """Has the sketch take what waits in the buffer."""
        if not self._waiting:
            return
        values, self._waiting = self._waiting, array("d")
        # Each value becomes the middle of its bucket, as it does in the sketch, but all of a bucket together.
        buckets = Counter([math.ceil(math.log2(value) * _SCALE) for value in values if value > 0.0])
        for bucket, count in buckets.items():
            self._sketch.add(_MAPPING.value(bucket), count)
        if zeros := len(values) - buckets.total():
            self._sketch.add(0.0, zeros)
        for place, count in Counter(map(partial(bisect_right, self._bounds), values)).items():
            self.bucket_counts[place] += count
        self._least = min(self._least, *values)
        self._most = max(self._most, *values)
        self._sum += sum(values)

    def merge(self, other: LatencySketch) -> None:
        """Takes all that another one of the same bounds took, and leaves that one as it is."""
        self.settle()
        other.settle()
        self._sketch.merge(other._sketch)
        self._least = min(self._least, other._least)
        self._most = max(self._most, other._most)
        self._sum += other._sum
        self.bucket_counts = [sum(pair) for pair in zip(self.bucket_counts, other.bucket_counts, strict=True)]

    def add_zeros(self, count: int) -> None:
        """Takes so many durations of zero."""
        if count:
            self._sketch.add(0.0, count)
            self.bucket_counts[0] += count
            self._least = 0.0

    def quantile(self, share: float) -> float | None:
        """The duration in seconds such that this share of all is no longer; None where there are none."""
        self.settle()
        count = round(self._sketch.count)
        place = max(0, math.ceil(share * count) - 1)  # nearest rank; the sketch's own is one lower for few
        value = self._sketch.get_quantile_value(min(1.0, (place + 0.5) / max(1, count - 1)))
        return None if value is None else min(max(float(value), self._least), self._most)

    def distribution(self) -> Distribution:
        """Sums it up."""
        self.settle()
        count = round(self._sketch.count)
        if not count:
            return Distribution(count=0)
        return Distribution(
            count=count,
            mean_ms=1e3 * self._sum / count,
            min_ms=1e3 * self._least,
            max_ms=1e3 * self._most,
            **{f"p{percent}_ms": self._quantile_ms(percent / 100) for percent in (50, 90, 95, 99)},
        )

    def _quantile_ms(self, share: float) -> float:
        return 1e3 * (self.quantile(share) or 0.0)

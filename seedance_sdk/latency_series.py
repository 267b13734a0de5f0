"""One kind of answers as they came, ready to be summed up: sketches and counters.

Written by the client's loop and read by any thread; the lock is held for an append, or while 512 values go
into their sketch. Must not know of frames or connections, only of what happened and how long it took.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from enum import Enum
from itertools import accumulate, pairwise

from seedance_sdk.latency_report import AnswerFigures, HistogramBucket
from seedance_sdk.latency_sketch import LatencySketch

__all__ = ["LatencySeries", "Outcome"]

GAP_BOUNDS_S = (0.005, 0.020, 0.050, 0.100, 0.200, 0.500, 1.0)
"""Of the histogram of gaps between tokens (S34), which begins with [0, 5) and [5, 20) ms."""


class Outcome(Enum):
    """How an answer ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class LatencySeries:
    """The figures of one kind of answers.

    Args:
        lock: Held at each change. Reentrant, so that a signal handler may ask for a report.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._ttft = LatencySketch()
        self._piece_gap = LatencySketch(GAP_BOUNDS_S)
        self._tpot = LatencySketch()
        self._total = LatencySketch()
        self._outage = LatencySketch()
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._tokens = 0
        self._zero_gaps = 0  # between tokens that arrived together
        self._interrupted = 0
        self._replayed = 0
        self._paced = 0

    def first(self, seconds: float, tokens: int) -> None:
        """The first tokens of an answer arrived, so long after the call."""
        with self._lock:
            self._tokens += tokens
            self._zero_gaps += tokens - 1
            self._ttft.add(seconds)

    def next(self, gap_s: float, tokens: int) -> None:
        """More tokens arrived, so long after the ones before."""
        with self._lock:
            self._tokens += tokens
            self._zero_gaps += tokens - 1
            self._piece_gap.add(gap_s)

    def restored(self, outage_s: float) -> None:
        """Tokens arrived for the first time since a connection was lost; count them by `late`."""
        with self._lock:
            self._outage.add(outage_s)

    def late(self, tokens: int) -> None:
        """Tokens arrived in the wake of a lost connection."""
        with self._lock:
            self._tokens += tokens
            self._replayed += tokens

    def paced(self, tokens: int) -> None:
        """Tokens arrived while the server held back, as they were not taken."""
        with self._lock:
            self._tokens += tokens
            self._paced += tokens

    def interrupted(self) -> None:
        """An answer lost its connection for the first time."""
        with self._lock:
            self._interrupted += 1

    def ended(self, outcome: Outcome, total_s: float | None = None, tpot_s: float | None = None) -> None:
        """A request or its answer is over.

        Args:
            outcome: How.
            total_s: From the call to the last token, where that says something.
            tpot_s: The mean gap between tokens, where that does.
        """
        with self._lock:
            self._outcomes[outcome] += 1
            if total_s is not None:
                self._total.add(total_s)
            if tpot_s is not None:
                self._tpot.add(tpot_s)

    def merge(self, other: LatencySeries) -> None:
        """Takes all that another one took, and leaves that one as it is."""
        with self._lock, other._lock:
            for name in ("_ttft", "_piece_gap", "_tpot", "_total", "_outage"):
                getattr(self, name).merge(getattr(other, name))
            for name in ("_tokens", "_zero_gaps", "_interrupted", "_replayed", "_paced"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
            for outcome, count in other._outcomes.items():
                self._outcomes[outcome] += count

    def figures(self) -> AnswerFigures:
        """Sums it up."""
        with self._lock:
            gaps = LatencySketch(GAP_BOUNDS_S)
            gaps.merge(self._piece_gap)
            gaps.add_zeros(self._zero_gaps)
            return AnswerFigures(
                finished=self._outcomes[Outcome.FINISHED],
                cancelled=self._outcomes[Outcome.CANCELLED],
                failed=self._outcomes[Outcome.FAILED],
                tokens=self._tokens,
                ttft=self._ttft.distribution(),
                itl=gaps.distribution(),
                piece_gap=self._piece_gap.distribution(),
                tpot=self._tpot.distribution(),
                total=self._total.distribution(),
                outage=self._outage.distribution(),
                interrupted=self._interrupted,
                replayed=self._replayed,
                paced=self._paced,
                histogram=_histogram(gaps.bucket_counts),
            )


def _histogram(counts: Iterable[int]) -> tuple[HistogramBucket, ...]:
    counts = list(counts)
    whole = max(1, sum(counts))
    bounds_ms = (0.0, *(1e3 * bound for bound in GAP_BOUNDS_S), None)
    return tuple(
        HistogramBucket(from_ms=start or 0.0, below_ms=end, count=count, share=so_far / whole)
        for (start, end), count, so_far in zip(pairwise(bounds_ms), counts, accumulate(counts), strict=True)
    )

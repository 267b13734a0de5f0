"""How much the round trip changes from one heartbeat to the next (S33), pure.

The mean of the differences among the last five round trips; while it is over 15 ms the path is marked, from
then to then. For one path only: a difference between two servers is no jitter. The time is an argument.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from attrs import evolve, frozen

__all__ = ["JitterFigures", "JitterMeter", "JitterPeriod"]

ROUND_TRIPS = 5
ALERT_S = 0.015
MAX_PERIODS = 32
"""Marked periods that are kept, the newest; picked, not measured."""


@frozen(kw_only=True)
class JitterPeriod:
    """A time in which the round trip was restless.

    Attributes:
        url: The endpoint.
        began_s: When the mean rose over the threshold, in seconds since the observation began.
        ended_s: When it was back; None while it lasts.
        peak_ms: The highest mean.
    """

    url: str
    began_s: float
    ended_s: float | None
    peak_ms: float


@frozen(kw_only=True)
class JitterFigures:
    """The round trip's restlessness.

    Attributes:
        jitter_ms: The mean difference among the last five round trips; None before the second.
        alerts: How often it rose over the threshold.
        periods: From when to when; the newest 32.
    """

    jitter_ms: float | None
    alerts: int
    periods: tuple[JitterPeriod, ...]


class JitterMeter:
    """The jitter of one path.

    Args:
        url: Where it leads.
        alert_s: The threshold, in seconds.
    """

    def __init__(self, url: str, alert_s: float = ALERT_S) -> None:
        self._url = url
        self._alert_s = alert_s
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._alerts = 0
        self._periods: deque[JitterPeriod] = deque(maxlen=MAX_PERIODS)

    @property
    def jitter_s(self) -> float | None:
        """Mean difference between neighbours of the last five round trips; None before the second."""
        differences = [abs(later - earlier) for earlier, later in pairwise(self._round_trips)]
        return sum(differences) / len(differences) if differences else None

    def add(self, round_trip_s: float, now_s: float) -> JitterPeriod | None:
        """Takes a round trip; returns the period that begins with it, if one does."""
        self._round_trips.append(round_trip_s)
        jitter_s = self.jitter_s
        if jitter_s is None:
            return None
        period = self._periods[-1] if self._periods and self._periods[-1].ended_s is None else None
        if jitter_s <= self._alert_s:
            if period is not None:
                self._periods[-1] = evolve(period, ended_s=now_s)
            return None
        if period is not None:
            self._periods[-1] = evolve(period, peak_ms=max(period.peak_ms, 1e3 * jitter_s))
            return None
        begun = JitterPeriod(url=self._url, began_s=now_s, ended_s=None, peak_ms=1e3 * jitter_s)
        self._alerts += 1
        self._periods.append(begun)
        return begun

    def forget(self, now_s: float) -> None:
        """The path was broken: the next round trip is compared with none before, and a period ends."""
        self._round_trips.clear()
        if self._periods and self._periods[-1].ended_s is None:
            self._periods[-1] = evolve(self._periods[-1], ended_s=now_s)

    def figures(self) -> JitterFigures:
        """Sums it up."""
        jitter_s = self.jitter_s
        return JitterFigures(
            jitter_ms=None if jitter_s is None else 1e3 * jitter_s,
            alerts=self._alerts,
            periods=tuple(self._periods),
        )

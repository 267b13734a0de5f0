"""What a client observes of latency, for all its endpoints, in bounded memory (S32 to S34).

The client's loop writes, any thread reads: one lock, held for an append or two. Costs the loop nothing but
that; sums are made when a report is asked for. Must not know of connections or frames.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from seedance_sdk.jitter import ALERT_S, JitterMeter, JitterPeriod
from seedance_sdk.latency_report import AnswerFigures, EndpointFigures, LatencyReport
from seedance_sdk.latency_series import LatencySeries
from seedance_sdk.latency_sketch import LatencySketch

__all__ = ["EndpointLatency", "LatencyObservatory"]

MAX_ENDPOINTS = 64
"""Told apart; what comes after them is counted together. About 100 KB each at worst; picked, not measured."""
OTHERS = "others"

_log = logging.getLogger("seedance_sdk")


class EndpointLatency:
    """What is observed of one endpoint; the client's own side of a `LatencyObservatory`.

    Args:
        url: Which.
        lock: The observatory's.
        clock: Seconds since the observation began.
        alert_s: Jitter over this is an alert.
        on_jitter: Hears of those.
    """

    def __init__(
        self,
        url: str,
        lock: threading.RLock,
        clock: Callable[[], float],
        alert_s: float,
        on_jitter: Callable[[JitterPeriod], object] | None,
    ) -> None:
        self.url = url
        self._lock = lock
        self._clock = clock
        self._on_jitter = on_jitter
        self._series = {canary: LatencySeries(lock) for canary in (False, True)}
        self._handshake = LatencySketch()
        self._round_trip = LatencySketch()
        self._jitter = JitterMeter(url, alert_s)

    def series(self, *, canary: bool) -> LatencySeries:
        """Where answers are counted."""
        return self._series[canary]

    def connected(self, handshake_s: float) -> None:
        """A connection was opened, in that time; its round trips are compared with no earlier ones."""
        with self._lock:
            self._handshake.add(handshake_s)
            self._jitter.forget(self._clock())

    def round_trip(self, seconds: float) -> None:
        """A heartbeat was answered, in that time."""
        with self._lock:
            self._round_trip.add(seconds)
            period = self._jitter.add(seconds, self._clock())
        if period is None:
            return
        _log.warning("the round trip to %s changes by %.1f ms each time", self.url, period.peak_ms)
        if self._on_jitter is not None:
            try:
                self._on_jitter(period)
            except Exception:  # noqa: BLE001 - a connection must not end by a mistake in somebody's counter
                _log.exception("on_jitter raised")

    def figures(self) -> EndpointFigures:
        """Sums it up."""
        with self._lock:
            return EndpointFigures(
                url=self.url,
                handshake=self._handshake.distribution(),
                round_trip=self._round_trip.distribution(),
                jitter=self._jitter.figures(),
                answers=self._series[False].figures(),
                canary=self._series[True].figures(),
            )


class LatencyObservatory:
    """Times of answers, handshakes and heartbeats; a client has one as its ``latency``.

        print(client.latency.report())

    Make one yourself to set what is below, or to observe several clients together:
    ``SeedanceClient(latency=LatencyObservatory(…))``. Memory is bounded: sketches and counters, no history.

    Args:
        on_jitter: Called when the mean change of the round trip, over the last five heartbeats, rises over
            ``jitter_alert_s``; on the client's loop, so it must return soon.
        jitter_alert_s: In seconds.
        clock: Seconds on a clock that does not go back.
    """

    def __init__(
        self,
        *,
        on_jitter: Callable[[JitterPeriod], object] | None = None,
        jitter_alert_s: float = ALERT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.RLock()
        self._on_jitter = on_jitter
        self._alert_s = jitter_alert_s
        self._clock = clock
        self._began = clock()
        self._endpoints: dict[str, EndpointLatency] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._endpoints)} endpoints for {self._elapsed():.0f} s>"

    def endpoint(self, url: str) -> EndpointLatency:
        """Where the client counts what it observes of one endpoint."""
        with self._lock:
            known = self._endpoints.get(url)
            if known is None:
                url = url if len(self._endpoints) < MAX_ENDPOINTS else OTHERS
                known = self._endpoints.setdefault(
                    url, EndpointLatency(url, self._lock, self._elapsed, self._alert_s, self._on_jitter)
                )
            return known

    def report(self) -> LatencyReport:
        """Sums up all that was observed so far. Any thread may ask, at any time; takes milliseconds."""
        with self._lock:
            endpoints = tuple(self._endpoints.values())
            return LatencyReport(
                seconds=self._elapsed(),
                answers=self._together(endpoints, canary=False),
                canary=self._together(endpoints, canary=True),
                endpoints=tuple(endpoint.figures() for endpoint in endpoints),
            )

    def _elapsed(self) -> float:
        return self._clock() - self._began

    def _together(self, endpoints: Iterable[EndpointLatency], *, canary: bool) -> AnswerFigures:
        whole = LatencySeries(self._lock)
        for endpoint in endpoints:
            whole.merge(endpoint.series(canary=canary))
        return whole.figures()

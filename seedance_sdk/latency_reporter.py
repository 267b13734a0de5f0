"""A client's own latency, reported to its server as an event now and then, where the program wants that.

Only news is reported: a client at rest says nothing. Losing one loses no more than a moment of a sum, since
each tells all so far. Must not know what carries events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from attrs import evolve

from seedance_sdk.errors import SeedanceError
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_report import LatencyReport

__all__ = ["LATENCY_ACTION", "LatencyReporter"]

LATENCY_ACTION = "seedance.latency"
"""The events' name; their payload is `LatencyReport.to_json`."""
MAX_PAYLOAD_BYTES = 65_536
"""Of the protocol. A report of more endpoints than fit leaves them out."""

_log = logging.getLogger("seedance_sdk")


class LatencyReporter:
    """Reports what one observatory has seen.

    Args:
        observatory: Where to look.
        report: Takes an action and a payload; see `AsyncSeedanceClient.report`.
        every_s: Seconds between two reports.
    """

    def __init__(
        self, observatory: LatencyObservatory, report: Callable[[str, str], object], every_s: float
    ) -> None:
        self._observatory = observatory
        self._report = report
        self._every_s = every_s
        self._told = 0

    async def run(self) -> None:
        """Reports at intervals, until cancelled."""
        while True:
            await trio.sleep(self._every_s)
            self.report_news()

    def report_news(self) -> None:
        """Reports now, if there is anything new; what can't be reported is logged, and news again later."""
        report = self._observatory.report()
        seen = _answers(report)
        if seen == self._told:
            return
        payload = report.to_json()
        if len(payload) > MAX_PAYLOAD_BYTES:
            payload = evolve(report, endpoints=()).to_json()
        try:
            self._report(LATENCY_ACTION, payload)
        except SeedanceError as error:
            _log.info("latency is not reported: %s", error)
        else:
            self._told = seen


def _answers(report: LatencyReport) -> int:
    """A number that grows whenever an answer ends or goes on."""
    kinds = (report.answers, report.canary)
    return sum(each.tokens + each.finished + each.cancelled + each.failed for each in kinds)

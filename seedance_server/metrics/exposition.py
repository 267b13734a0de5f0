"""A scrape as Prometheus reads it, made so that the event loop hardly notices.

Values are read on the loop, all of one moment; writing them out as text takes longer (`bench/metrics.py`) and
happens on a worker thread, one scrape at a time, so that whoever asks in a hurry waits for himself alone.

It must not know paths or keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from seedance_server.metrics.requests import RequestMetrics

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""Every scraper reads it. OpenMetrics, which newer ones prefer, has no colon in the library's spelling."""


class _Read(Collector):
    """Families that were read already."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """Them."""
        return self._families


class Metrics:
    """All metrics of one server.

    Args:
        registry: Where they are registered; nobody else's, so that two servers can live in one process.

    Attributes:
        registry: That one.
        requests: Watches requests.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = RequestMetrics(registry)
        self.registry = registry
        self._turn = trio.Lock()
        ProcessCollector(registry=registry)

    def read(self, state: Collector) -> None:
        """Has this read at each scrape, on the event loop's thread."""
        self.registry.register(state)

    async def expose(self) -> bytes:
        """Reads everything and writes it out, as `CONTENT_TYPE` says."""
        async with self._turn:
            families = [_without_birthdays(family) for family in self.registry.collect()]
            return await trio.to_thread.run_sync(generate_latest, _Read(families))


def _without_birthdays(family: Family) -> Family:
    """Drops when each counter was made: as many series again, of use to nobody who reads a rate."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family

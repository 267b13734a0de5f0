"""The latency figures for Prometheus; needs ``pip install seedance-sdk[prometheus]``.

    from prometheus_client import REGISTRY
    from seedance_sdk.prometheus import LatencyCollector

    REGISTRY.register(LatencyCollector(client.latency))

Sums up at each scrape and costs nothing between them. Importing `seedance_sdk` does not import this.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_metrics import counts_of, quantiles_of, times_of

__all__ = ["LatencyCollector"]


class LatencyCollector(Collector):
    """Summaries ``seedance_client_…_seconds`` and counters ``seedance_client_…_total``.

    Labels are ``endpoint``, and for answers ``canary``. Quantiles can't be averaged over processes: alert on
    each, or on the sums. Clients that share a registry must share an observatory.

    Args:
        observatory: A client's ``latency``.
    """

    def __init__(self, observatory: LatencyObservatory) -> None:
        self._observatory = observatory

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics, as of now."""
        report = self._observatory.report()
        families: dict[str, Metric] = {}
        for times in times_of(report):
            name = f"seedance_client_{times.name}_seconds"
            family = families.setdefault(name, SummaryMetricFamily(name, times.meaning))
            labels, figures = dict(times.labels), times.distribution
            for share, seconds in quantiles_of(figures):
                family.add_sample(name, {**labels, "quantile": str(share)}, seconds)
            family.add_sample(f"{name}_count", labels, figures.count)
            family.add_sample(f"{name}_sum", labels, figures.count * (figures.mean_ms or 0.0) / 1e3)
        for count in counts_of(report):
            name = f"seedance_client_{count.name}"
            family = families.setdefault(name, CounterMetricFamily(name, count.meaning))
            family.add_sample(f"{name}_total", dict(count.labels), count.value)
        yield from families.values()

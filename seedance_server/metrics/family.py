"""Families of samples in the making, by the names of the catalogue.

It must not know where values come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from seedance_server.distribution import Distribution
from seedance_server.metrics.catalogue import CATALOGUE, PREFIX

__all__ = ["Scrape"]

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_KINDS: Mapping[str, type[_Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Scrape:
    """Takes values and gives families."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    @property
    def families(self) -> Iterable[_Family]:
        """What was put, each metric with all its samples."""
        return self._families.values()

    def _family(self, name: str) -> _Family:
        if (family := self._families.get(name)) is None:
            metric = CATALOGUE[name]
            family = _KINDS[metric.kind](f"{PREFIX}{name}", metric.help, labels=metric.labels)
            self._families[name] = family
        return family

    def put(self, name: str, value: float, *labels: str) -> None:
        """Puts one sample of a counter or gauge, with the values of its labels."""
        family = self._family(name)
        assert not isinstance(family, HistogramMetricFamily)  # noqa: S101 - see below
        family.add_metric(labels, float(value))

    def put_each(self, name: str, values: Mapping[str, float]) -> None:
        """Puts a sample for each value of the one label; the family is there also without any."""
        self._family(name)
        for label, value in values.items():
            self.put(name, value, label)

    def put_distribution(self, name: str, distribution: Distribution) -> None:
        """Puts a whole histogram."""
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101 - the catalogue says so
        buckets = [(_bound(bound), count) for bound, count in distribution.buckets]
        family.add_metric((), buckets, distribution.sum)


def _bound(bound: float) -> str:
    return "+Inf" if bound == math.inf else str(float(bound))

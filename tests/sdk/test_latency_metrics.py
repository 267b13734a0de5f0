"""A report as metrics: nothing of it is left out, nothing is there twice."""

from __future__ import annotations

from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_metrics import counts_of, quantiles_of, times_of
from seedance_sdk.latency_series import Outcome
from seedance_sdk.latency_sketch import Distribution


def observed() -> LatencyObservatory:
    """Two endpoints: one with answers, one with a canary that failed."""
    observatory = LatencyObservatory()
    one = observatory.endpoint("ws://a")
    one.connected(0.002)
    one.round_trip(0.010)
    series = one.series(canary=False)
    series.first(0.25, 2)
    series.next(0.05, 1)
    series.ended(Outcome.FINISHED, 0.3, 0.025)
    observatory.endpoint("ws://b").series(canary=True).ended(Outcome.FAILED)
    return observatory


def test_every_distribution_is_there_once_for_each_label() -> None:
    """Whoever reads metrics sees what a report says."""
    times = list(times_of(observed().report()))
    keys = [(each.name, tuple(each.labels.items())) for each in times]
    assert len(keys) == len(set(keys)) == 6 * 2 * 2 + 2 * 2
    names = [each.name for each in times]
    assert names == sorted(names, key=names.index)  # those of one name together
    labels = {"endpoint": "ws://a", "canary": "false"}
    (ttft,) = (each for each in times if each.name == "ttft" and each.labels == labels)
    assert ttft.distribution.count == 1


def test_every_count_is_there_once_for_each_label() -> None:
    """Canaries and endpoints are told apart by labels."""
    counts = list(counts_of(observed().report()))
    keys = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in counts}
    assert len(keys) == len(counts)
    assert keys["tokens", (("canary", "false"), ("endpoint", "ws://a"))] == 3
    assert keys["answers", (("canary", "true"), ("endpoint", "ws://b"), ("outcome", "failed"))] == 1
    assert keys["jitter_alerts", (("endpoint", "ws://a"),)] == 0


def test_quantiles_are_shares_and_seconds_and_none_of_nothing() -> None:
    """No time is exported where there was none."""
    figures = Distribution(count=9, p50_ms=1.0, p90_ms=2.0, p95_ms=3.0, p99_ms=4.0)
    assert list(quantiles_of(figures)) == [(0.5, 0.001), (0.9, 0.002), (0.95, 0.003), (0.99, 0.004)]
    assert not list(quantiles_of(Distribution(count=0)))

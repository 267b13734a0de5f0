"""The figures as OpenTelemetry reads them: through its own reader."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk brings a reader to test with")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_series import Outcome
from seedance_sdk.opentelemetry import observe


def test_a_reader_collects_what_a_report_tells() -> None:
    """Quantiles as gauges in seconds, counts as counters, also of endpoints that came after `observe`."""
    observatory = LatencyObservatory()
    reader = InMemoryMetricReader()
    observe(observatory, MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))
    endpoint = observatory.endpoint("ws://a")
    endpoint.series(canary=False).first(0.25, 2)
    endpoint.series(canary=False).ended(Outcome.FAILED)
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        (metric.name, *sorted((point.attributes or {}).items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    labels: Mapping[str, str] = {"canary": "false", "endpoint": "ws://a"}
    assert points["seedance.client.ttft", *labels.items(), ("quantile", "0.99")] == pytest.approx(0.25)
    assert points["seedance.client.tokens", *labels.items()] == 2
    assert points["seedance.client.answers", *labels.items(), ("outcome", "failed")] == 1
    assert points["seedance.client.jitter_alerts", ("endpoint", "ws://a")] == 0

"""The figures as Prometheus reads them: by its own parser, from its own text."""

from __future__ import annotations

import subprocess
import sys

import pytest

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="pip install 'seedance-sdk[prometheus]' brings it"
)

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from seedance_sdk.latency import LatencyObservatory  # noqa: E402
from seedance_sdk.latency_series import Outcome  # noqa: E402
from seedance_sdk.prometheus import LatencyCollector  # noqa: E402


def test_a_scrape_tells_what_a_report_tells() -> None:
    """Summaries with quantiles, counts and sums in seconds, and counters; the parser accepts the text."""
    observatory = LatencyObservatory()
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(LatencyCollector(observatory))
    series = observatory.endpoint("ws://a").series(canary=False)
    series.first(0.25, 2)
    series.ended(Outcome.FINISHED)
    text = prometheus_client.generate_latest(registry).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = (("canary", "false"), ("endpoint", "ws://a"))
    assert samples["seedance_client_ttft_seconds_count", *labels] == 1
    assert samples["seedance_client_ttft_seconds_sum", *labels] == pytest.approx(0.25)
    assert samples["seedance_client_ttft_seconds", *labels, ("quantile", "0.99")] == pytest.approx(0.25)
    assert samples["seedance_client_tokens_total", *labels] == 2
    assert samples["seedance_client_answers_total", *labels, ("outcome", "finished")] == 1
    assert ("seedance_client_outage_seconds", *labels, ("quantile", "0.5")) not in samples


def test_importing_the_sdk_imports_no_exporter() -> None:
    """They are extras: a program without them starts, and one with them pays when it asks."""
    code = "import sys, seedance_sdk; assert not {'prometheus_client', 'opentelemetry'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

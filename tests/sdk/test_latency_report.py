"""The report as an object, a table and JSON."""

from __future__ import annotations

import json

import pytest
from attrs.exceptions import FrozenInstanceError

from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_series import Outcome


def observed() -> LatencyObservatory:
    observatory = LatencyObservatory(clock=iter(range(1000)).__next__)
    endpoint = observatory.endpoint("ws://a/v1/chat")
    endpoint.connected(0.004)
    for round_trip_s in (0.010, 0.011):
        endpoint.round_trip(round_trip_s)
    series = endpoint.series(canary=False)
    series.first(0.0637, 1)
    for _ in range(99):
        series.next(0.0171, 1)
    series.next(1.5, 1)
    series.ended(Outcome.FINISHED, 2.0, 0.0173)
    return observatory


def test_report_is_frozen() -> None:
    """What is handed out does not change under its reader."""
    report = observed().report()
    with pytest.raises(FrozenInstanceError):
        report.seconds = 0.0  # type: ignore[misc]
    assert report.answers.tokens == 101


def test_report_prints_as_a_table() -> None:
    """For people: times with three digits, the outcome in words, the histogram with its shares."""
    lines = [" ".join(line.split()) for line in str(observed().report()).splitlines()]
    assert lines[0] == "Latency over 4 s, in milliseconds count mean P50 P90 P95 P99 longest"
    assert "first token 1 63.7 63.7 63.7 63.7 63.7 63.7" in lines
    assert any(line.startswith("between tokens 100 31.9") and line.endswith("1,500") for line in lines)
    assert "1 answer, 0 cancelled, 0 failed (0.00%), 101 tokens" in lines
    assert "[5, 20) ms 99 99.00%" in lines
    assert "[1000, ∞) ms 1 100.00%" in lines
    assert "jitter 1.0 ms, 0 alerts" in lines
    assert not any("Canaries" in line or "outages" in line or "interrupted" in line for line in lines)


def test_report_of_nothing_prints_too() -> None:
    """Before the first request there is a table without times."""
    assert "first token" in str(LatencyObservatory().report())


def test_report_tells_canaries_and_endpoints_apart() -> None:
    """S37: the P99 and the error rate of what was aimed at one instance can be read by themselves."""
    observatory = observed()
    canaries = observatory.endpoint("ws://b/v1/chat").series(canary=True)
    canaries.first(9.0, 1)
    canaries.interrupted()
    canaries.restored(4.0)
    canaries.late(3)
    canaries.ended(Outcome.FAILED)
    report = observatory.report()
    assert report.answers.error_rate == 0
    assert report.canary.error_rate == 1
    assert [endpoint.canary.failed for endpoint in report.endpoints] == [0, 1]
    assert [endpoint.answers.tokens for endpoint in report.endpoints] == [101, 0]
    text = str(report)
    assert "Canaries" in text
    assert "1 interrupted, with 3 tokens late" in text
    _, of_b = text.split("ws://b/v1/chat")
    assert "first token of canaries" in of_b
    assert "first token  " not in of_b  # it had nothing but canaries


def test_report_is_json() -> None:
    """Every attribute by its name; no time is null, never NaN."""
    report = observed().report()
    stored = json.loads(report.to_json())
    assert stored["answers"]["itl"]["count"] == 100
    assert stored["answers"]["outage"]["p99_ms"] is None
    assert stored["endpoints"][0]["jitter"]["periods"] == []
    assert stored["answers"]["histogram"][-1]["below_ms"] is None
    assert "\n" in report.to_json(indent=2)

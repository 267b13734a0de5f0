"""A latency report as metrics: names, labels and numbers, for whichever library exports them.

Pure; the libraries are met in `prometheus.py` and `opentelemetry.py` only. Times are seconds here, as such
libraries want them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from seedance_sdk.latency_report import AnswerFigures, LatencyReport
from seedance_sdk.latency_sketch import Distribution

__all__ = ["Count", "Times", "counts_of", "quantiles_of", "times_of"]

_TIMES_OF_ANSWERS: Mapping[str, str] = {
    "ttft": "From the call to the first token",
    "itl": "Between one token and the next",
    "piece_gap": "Between one piece of text and the next",
    "tpot": "Mean gap between the tokens of an answer",
    "total": "From the call to the last token",
    "outage": "Without tokens because of a lost connection",
}
_TIMES_OF_ENDPOINTS: Mapping[str, str] = {
    "handshake": "Until a connection was open: TCP, TLS, upgrade",
    "round_trip": "Of a heartbeat",
}
_OUTCOMES = ("finished", "cancelled", "failed")
_COUNTS: Mapping[str, str] = {
    "tokens": "Tokens that arrived",
    "replayed": "Tokens that arrived in the wake of a lost connection",
    "paced": "Tokens that arrived while the server held back for a slow reader",
    "interrupted": "Answers that were under way when a connection was lost",
}


@frozen(kw_only=True)
class Times:
    """One distribution of times.

    Attributes:
        name: Such as ``ttft``.
        meaning: In words.
        labels: Which endpoint and, for answers, whether canaries.
        distribution: The times.
    """

    name: str
    meaning: str
    labels: Mapping[str, str]
    distribution: Distribution


@frozen(kw_only=True)
class Count:
    """One number that only grows.

    Attributes:
        name: Such as ``tokens``.
        meaning: In words.
        labels: As for `Times`; of answers also how they ended.
        value: How many.
    """

    name: str
    meaning: str
    labels: Mapping[str, str]
    value: int


def times_of(report: LatencyReport) -> Iterator[Times]:
    """Yields every distribution, those of one name one after the other."""
    for name, meaning in _TIMES_OF_ANSWERS.items():
        for labels, figures in _answers(report):
            yield Times(name=name, meaning=meaning, labels=labels, distribution=getattr(figures, name))
    for name, meaning in _TIMES_OF_ENDPOINTS.items():
        for endpoint in report.endpoints:
            labels = {"endpoint": endpoint.url}
            yield Times(name=name, meaning=meaning, labels=labels, distribution=getattr(endpoint, name))


def counts_of(report: LatencyReport) -> Iterator[Count]:
    """Yields every number that only grows, those of one name one after the other."""
    for labels, figures in _answers(report):
        for outcome in _OUTCOMES:
            whole = {**labels, "outcome": outcome}
            yield Count(
                name="answers", meaning="Answers that ended", labels=whole, value=getattr(figures, outcome)
            )
    for name, meaning in _COUNTS.items():
        for labels, figures in _answers(report):
            yield Count(name=name, meaning=meaning, labels=labels, value=getattr(figures, name))
    for endpoint in report.endpoints:
        yield Count(
            name="jitter_alerts",
            meaning="Times that the round trip became restless",
            labels={"endpoint": endpoint.url},
            value=endpoint.jitter.alerts,
        )


def quantiles_of(distribution: Distribution) -> Iterator[tuple[float, float]]:
    """Yields share and seconds of each quantile; nothing where there were no times."""
    for percent in (50, 90, 95, 99):
        milliseconds = getattr(distribution, f"p{percent}_ms")
        if milliseconds is not None:
            yield percent / 100, milliseconds / 1e3


def _answers(report: LatencyReport) -> Iterator[tuple[dict[str, str], AnswerFigures]]:
    for endpoint in report.endpoints:
        yield {"endpoint": endpoint.url, "canary": "false"}, endpoint.answers
        yield {"endpoint": endpoint.url, "canary": "true"}, endpoint.canary

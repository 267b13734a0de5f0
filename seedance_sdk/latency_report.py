"""What was observed, frozen: figures to compute with, a table to read, JSON to store.

All times are milliseconds as this process saw them, but for periods, which are in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from attrs import asdict, frozen

from seedance_sdk.jitter import JitterFigures
from seedance_sdk.latency_sketch import Distribution

__all__ = ["AnswerFigures", "EndpointFigures", "HistogramBucket", "LatencyReport"]


@frozen(kw_only=True)
class HistogramBucket:
    """Gaps between tokens of about one length.

    Attributes:
        from_ms: The shortest of them.
        below_ms: They are shorter than this; None for the last bucket, which has no end.
        count: How many.
        share: They and all shorter ones, as a share of all; 0 where there are none.
    """

    from_ms: float
    below_ms: float | None
    count: int
    share: float


@frozen(kw_only=True)
class AnswerFigures:
    """How answers came; see `docs/latency.md` for the exact definitions.

    Attributes:
        finished: Answers that came to their end.
        cancelled: Answers that this side ended.
        failed: Requests and answers that ended with an error.
        tokens: Tokens that arrived, ``replayed`` and ``paced`` ones included.
        ttft: From the call to the first token.
        itl: Between one token and the next; tokens that arrive together have gaps of zero.
        piece_gap: Between one piece of text and the next, whatever it holds.
        tpot: For each finished answer of two tokens or more, the mean gap between its tokens.
        total: From the call to the last token of each finished answer.
        outage: From the last token, or the call, before a lost connection to the first token after it. None
            of the five above has any of this time in it.
        interrupted: Answers that were under way when a connection was lost.
        replayed: Tokens that arrived in the wake of a lost connection, or had been made for an earlier
            reader. They have no gaps, and their answers no ``tpot`` and ``total``.
        paced: Tokens that arrived while the server held back, as this side did not take them; the same.
        histogram: The gaps of ``itl`` by their length.
    """

    finished: int
    cancelled: int
    failed: int
    tokens: int
    ttft: Distribution
    itl: Distribution
    piece_gap: Distribution
    tpot: Distribution
    total: Distribution
    outage: Distribution
    interrupted: int
    replayed: int
    paced: int
    histogram: tuple[HistogramBucket, ...]

    @property
    def error_rate(self) -> float:
        """The share of those that failed among those that finished or failed; 0 where there are none."""
        return self.failed / max(1, self.finished + self.failed)


@frozen(kw_only=True)
class EndpointFigures:
    """What one endpoint was like.

    Attributes:
        url: Which.
        handshake: Until a connection was open: TCP, TLS and the WebSocket's upgrade.
        round_trip: Of its heartbeats.
        jitter: How much that changes.
        answers: Of requests that were no canaries.
        canary: Of those that were.
    """

    url: str
    handshake: Distribution
    round_trip: Distribution
    jitter: JitterFigures
    answers: AnswerFigures
    canary: AnswerFigures


@frozen(kw_only=True)
class LatencyReport:
    """What a client has observed; ``print`` it for a table.

    Attributes:
        seconds: For how long it observed.
        answers: Of requests that were no canaries, over all endpoints.
        canary: Of those that were.
        endpoints: Each by itself, in the order of their first use.
    """

    seconds: float
    answers: AnswerFigures
    canary: AnswerFigures
    endpoints: tuple[EndpointFigures, ...]

    def to_json(self, *, indent: int | None = None) -> str:
        """All of it as JSON; the fields are the attributes' names, times are numbers or null.

        Args:
            indent: As for `json.dumps`.
        """
        return json.dumps(asdict(self), indent=indent)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: LatencyReport) -> Iterator[str]:
    yield from _answers_table(f"Latency over {report.seconds:.0f} s, in milliseconds", report.answers)
    if _anything(report.canary):
        yield ""
        yield from _answers_table("Canaries", report.canary)
    for endpoint in report.endpoints:
        yield ""
        yield _row(endpoint.url, "count", "mean", "P50", "P90", "P95", "P99", "longest")
        yield _distribution("handshake", endpoint.handshake)
        yield _distribution("round trip", endpoint.round_trip)
        jitter = endpoint.jitter
        if jitter.jitter_ms is not None:
            yield f"jitter {jitter.jitter_ms:.1f} ms, {_count(jitter.alerts, 'alert')}"
        if len(report.endpoints) > 1:
            yield from _in_short(endpoint.answers, "")
            yield from _in_short(endpoint.canary, " of canaries")


def _anything(figures: AnswerFigures) -> bool:
    return bool(figures.tokens or figures.finished or figures.cancelled or figures.failed)


def _in_short(figures: AnswerFigures, whose: str) -> Iterator[str]:
    if _anything(figures):
        yield _distribution(f"first token{whose}", figures.ttft)
        yield _distribution(f"between tokens{whose}", figures.itl)
        yield _outcome(figures)


def _answers_table(title: str, figures: AnswerFigures) -> Iterator[str]:
    yield _row(title, "count", "mean", "P50", "P90", "P95", "P99", "longest")
    yield _distribution("first token", figures.ttft)
    yield _distribution("between tokens", figures.itl)
    yield _distribution("between pieces", figures.piece_gap)
    yield _distribution("a token, by answer", figures.tpot)
    yield _distribution("whole answer", figures.total)
    if figures.outage.count:
        yield _distribution("outages", figures.outage)
    yield _outcome(figures)
    if figures.itl.count:
        yield "between tokens"
        for bucket in figures.histogram:
            yield _bucket(bucket)


def _outcome(figures: AnswerFigures) -> str:
    parts = [_count(figures.finished, "answer"), f"{figures.cancelled} cancelled"]
    parts += [f"{figures.failed} failed ({figures.error_rate:.2%})", _count(figures.tokens, "token")]
    if figures.interrupted or figures.replayed:
        parts.append(f"{figures.interrupted} interrupted, with {_count(figures.replayed, 'token')} late")
    if figures.paced:
        parts.append(f"{_count(figures.paced, 'token')} held back by slow readers")
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _bucket(bucket: HistogramBucket) -> str:
    end = "∞" if bucket.below_ms is None else f"{bucket.below_ms:g}"
    span = f"[{bucket.from_ms:g}, {end})"
    return f"  {span:>14} ms {bucket.count:>10,} {bucket.share:>8.2%}"


def _distribution(name: str, figures: Distribution) -> str:
    times = (figures.mean_ms, figures.p50_ms, figures.p90_ms, figures.p95_ms, figures.p99_ms, figures.max_ms)
    return _row(f"  {name}", f"{figures.count:,}", *(_time(time) for time in times))


def _row(name: str, *cells: str) -> str:
    return f"{name:<46}" + "".join(f"{cell:>10}" for cell in cells)


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    digits = 0 if milliseconds >= 99.95 else 2 - math.floor(math.log10(max(1.0, milliseconds)))
    return f"{milliseconds:,.{digits}f}"

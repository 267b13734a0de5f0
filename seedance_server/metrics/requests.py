"""What happens to requests, as counters and histograms of their own.

Everything in here is told once a request or once an edge, never once a token: an instrument of the library
costs a microsecond or two. What happens with every token is counted where it happens and read at a scrape
(`state.py`).

It must not know where requests come from.
"""

from __future__ import annotations

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from seedance_server.metrics.catalogue import CATALOGUE, PREFIX
from seedance_server.request_watch import Outcome, RequestWatch, ResumeOutcome
from seedance_wire.messages import ErrorCode, FlowAction

__all__ = ["RequestMetrics"]

T = TypeVar("T", Counter, Histogram)

_CANARY = {False: "false", True: "true"}


class RequestMetrics:
    """An `Observer` that counts.

    Args:
        registry: Where the instruments are registered.

    Attributes:
        outcomes: How often requests ended how, canaries apart; read at a scrape, since the journal has its
            part in it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def make(kind: type[T], name: str) -> T:
            metric = CATALOGUE[name]
            more: dict[str, Any] = {"buckets": metric.buckets} if kind is Histogram else {}
            return kind(f"{PREFIX}{name}", metric.help, metric.labels, registry=registry, **more)

        ttft, e2e = (
            make(Histogram, f"{name}_seconds") for name in ("time_to_first_token", "e2e_request_latency")
        )
        self.outcomes = {(outcome, canary): 0 for outcome in Outcome for canary in _CANARY}
        # Every child is made now: a series that begins with its first event has a rate of nothing until then.
        self._ttft = {canary: ttft.labels(label) for canary, label in _CANARY.items()}
        self._e2e = {canary: e2e.labels(label) for canary, label in _CANARY.items()}
        failures = make(Counter, "request_failures")
        self._failures = {code: failures.labels(code.value) for code in ErrorCode}
        self._taken_up = make(Counter, "requests_taken_up")
        self._parked = make(Counter, "requests_parked")
        self._replayed = make(Counter, "requests_replayed")
        self._per_token = make(Histogram, "request_time_per_output_token_seconds")
        self._stages = {
            field: make(Histogram, f"request_{stage}_time_seconds")
            for field, stage in (
                ("queue_s", "queue"),
                ("preprocess_s", "preprocess"),
                ("prefill_s", "prefill"),
                ("first_decode_s", "first_decode"),
                ("cache_sync_s", "cache_sync"),
            )
        }
        self._egress = make(Histogram, "request_egress_time_seconds")
        self._prompt_tokens = make(Histogram, "request_prompt_tokens")
        self._generation_tokens = make(Histogram, "request_generation_tokens")
        resumes = make(Counter, "resumes")
        self._resumes = {outcome: resumes.labels(outcome.value) for outcome in ResumeOutcome}
        self._replayed_frames = make(Counter, "replayed_frames")
        flow = make(Counter, "flow_changes")
        self._flow = {action: flow.labels(action.value) for action in FlowAction}
        self._stalls = make(Histogram, "window_stall_seconds")

    def began(self, watch: RequestWatch) -> None:
        """See `Observer.began`."""
        if watch.is_taken_up:
            self._taken_up.inc()

    def wrote_first(self, watch: RequestWatch) -> None:
        """See `Observer.wrote_first`."""
        if watch.ttft_s is not None:
            self._ttft[watch.canary].observe(watch.ttft_s)

    def ended(self, watch: RequestWatch) -> None:
        """See `Observer.ended`."""
        assert watch.outcome is not None  # noqa: S101 - it has just got it
        self.outcomes[watch.outcome, watch.canary] += 1
        if watch.code is not None:
            self._failures[watch.code].inc()
        if watch.timing is not None and not watch.is_taken_up:
            for field, histogram in self._stages.items():
                histogram.observe(getattr(watch.timing, field))
            self._egress.observe(watch.egress_s)
        if watch.usage is not None:
            self._prompt_tokens.observe(watch.usage.prompt_tokens)
            self._generation_tokens.observe(watch.usage.completion_tokens)
        if watch.outcome in {Outcome.STOP, Outcome.LENGTH} and not watch.is_taken_up:
            self._note_pace(watch)

    def _note_pace(self, watch: RequestWatch) -> None:
        assert watch.ended_s is not None  # noqa: S101 - it is over
        e2e_s = watch.ended_s - watch.arrival_s
        self._e2e[watch.canary].observe(e2e_s)
        if watch.ttft_s is not None and watch.usage is not None and watch.usage.completion_tokens > 1:
            self._per_token.observe((e2e_s - watch.ttft_s) / (watch.usage.completion_tokens - 1))

    def parked(self, watch: RequestWatch) -> None:  # noqa: ARG002 - an observer's
        """See `Observer.parked`."""
        self._parked.inc()

    def replayed(self, watch: RequestWatch) -> None:  # noqa: ARG002 - an observer's
        """See `Observer.replayed`."""
        self._replayed.inc()

    def flowed(self, action: FlowAction, held_s: float | None) -> None:
        """See `Observer.flowed`."""
        self._flow[action].inc()
        if held_s is not None:
            self._stalls.observe(held_s)

    def resumed(self, outcome: ResumeOutcome, replayed_frames: int) -> None:
        """See `Observer.resumed`."""
        self._resumes[outcome].inc()
        self._replayed_frames.inc(replayed_frames)

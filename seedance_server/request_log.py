"""A line for each request that is over: what it came to, under its names, and nothing of what was said.

It must not know how lines look.
"""

from __future__ import annotations

import structlog

from seedance_server.request_watch import Outcome, RequestWatch, ResumeOutcome
from seedance_wire.messages import FlowAction

__all__ = ["RequestLog"]

_log = structlog.get_logger(__name__)


class RequestLog:
    """An `Observer` that writes lines."""

    def began(self, watch: RequestWatch) -> None:
        """See `Observer.began`."""

    def wrote_first(self, watch: RequestWatch) -> None:
        """See `Observer.wrote_first`."""

    def replayed(self, watch: RequestWatch) -> None:
        """See `Observer.replayed`."""
        _log.info("request known already", **_names(watch))

    def flowed(self, action: FlowAction, held_s: float | None) -> None:
        """See `Observer.flowed`."""

    def resumed(self, outcome: ResumeOutcome, replayed_frames: int) -> None:
        """See `Observer.resumed`."""

    def parked(self, watch: RequestWatch) -> None:
        """See `Observer.parked`."""
        _log.info("request parked", **_names(watch))

    def ended(self, watch: RequestWatch) -> None:
        """See `Observer.ended`."""
        assert watch.outcome is not None  # noqa: S101 - it has just got it
        assert watch.ended_s is not None  # noqa: S101
        figures: dict[str, object] = {"seconds": round(watch.ended_s - watch.arrival_s, 4)}
        if watch.ttft_s is not None:
            figures["ttft_ms"] = round(watch.ttft_s * 1e3, 1)
        if watch.usage is not None:
            figures["prompt_tokens"] = watch.usage.prompt_tokens
            figures["completion_tokens"] = watch.usage.completion_tokens
        if watch.code is not None:
            figures["code"] = watch.code.value
        say = _log.warning if watch.outcome is Outcome.ERROR else _log.info
        say("request over", outcome=watch.outcome.value, **_names(watch), **figures)


def _names(watch: RequestWatch) -> dict[str, object]:
    names: dict[str, object] = {
        "tenant": watch.tenant,
        "session": watch.session,
        "stream_id": watch.stream_id,
    }
    if watch.canary:
        names["canary"] = True
    if watch.traceparent is not None:
        names["trace_id"] = watch.traceparent.split("-")[1]
    return names

"""One span for each request, with its stages as events, for whoever collects OpenTelemetry's traces.

A span is made when its request is over, from what was noted on the way, and put into a bounded queue; a
thread of the library's exports from there. So a collector that is slow or gone costs spans, never a token:
the queue drops, and the counts say how many arrived. Nothing of the library is imported without
``--otlp-endpoint``.

It must not know what a request asks for: no prompt, no answer and no key is ever part of a span.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio
from attrs import asdict, define

from seedance_server import __version__
from seedance_server.errors import ConfigError
from seedance_server.request_watch import Outcome, RequestWatch, ResumeOutcome
from seedance_wire.messages import FlowAction

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["TraceStatistics", "Traces", "open_traces", "otlp_exporter"]

_QUEUE_SPANS = 2048
"""Spans that wait for the collector: the library's own bound, some 4 MB."""
_BATCH_SPANS = 512
_EXPORT_EVERY_S = 1.0
_EXPORT_TIMEOUT_S = 5.0
"""For one batch, retries included; meanwhile spans gather, and beyond the queue the oldest go."""
_CLOSE_S = 2.0
"""For what still waits when the server ends: a collector that is there takes it in milliseconds."""
_FAILED = {Outcome.ERROR, Outcome.REFUSED}


@define
class TraceStatistics:
    """Counts since the start.

    Attributes:
        made: Spans made.
        exported: Those of them that the collector took.
        failed: Those that it was offered in vain; what is missing still waits, or was dropped.
    """

    made: int = 0
    exported: int = 0
    failed: int = 0


def otlp_exporter(endpoint: str) -> SpanExporter:
    """An exporter to a collector, by OTLP over HTTP.

    Args:
        endpoint: Its URL; without a path, that of traces is added.

    Raises:
        ConfigError: The packages for it aren't installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise ConfigError("--otlp-endpoint", "needs: pip install 'seedance-server[otel]'") from error
    path = urlsplit(endpoint).path.rstrip("/")
    return OTLPSpanExporter(
        endpoint=endpoint if path else f"{endpoint.rstrip('/')}/v1/traces", timeout=_EXPORT_TIMEOUT_S
    )


def open_traces(endpoint: str | None) -> Traces | None:
    """Traces to a collector; None without one."""
    return None if endpoint is None else Traces(otlp_exporter(endpoint))


class Traces:
    """An `Observer` that makes spans.

    Resource handling: `close` says goodbye to the collector and ends the library's thread.

    Args:
        exporter: Where spans go.
        wall_clock_ns: Nanoseconds since 1970.
        export_every_s: How long a span waits for company.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        export_every_s: float = _EXPORT_EVERY_S,
    ) -> None:
        # An extra, and of no use without a collector.
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        # It would say on stderr, at length and again and again, what the counts say.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._counts = TraceStatistics()
        self._wall_clock_ns = wall_clock_ns
        resource = Resource.create({"service.name": "seedance-server", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _counting(exporter, self._counts),
                max_queue_size=_QUEUE_SPANS,
                max_export_batch_size=_BATCH_SPANS,
                schedule_delay_millis=export_every_s * 1e3,
            )
        )
        self._tracer = self._provider.get_tracer("seedance_server", __version__)
        self._extract = TraceContextTextMapPropagator().extract

    def statistics(self) -> TraceStatistics:
        """Counts so far; the object is live."""
        return self._counts

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Exports what waits, as far as that goes within the time given, at most two seconds, and ends."""
        with trio.move_on_after(min(timeout_s, _CLOSE_S), shield=True):
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)

    # ---- an observer's

    def began(self, watch: RequestWatch) -> None:
        """See `Observer.began`."""

    def wrote_first(self, watch: RequestWatch) -> None:
        """See `Observer.wrote_first`."""

    def replayed(self, watch: RequestWatch) -> None:
        """See `Observer.replayed`: it is part of another one's span."""

    def flowed(self, action: FlowAction, held_s: float | None) -> None:
        """See `Observer.flowed`."""

    def resumed(self, outcome: ResumeOutcome, replayed_frames: int) -> None:
        """See `Observer.resumed`."""

    def ended(self, watch: RequestWatch) -> None:
        """See `Observer.ended`."""
        self._make_span(watch)

    def parked(self, watch: RequestWatch) -> None:
        """See `Observer.parked`: whoever takes it up makes a span of its own, in the same trace."""
        self._make_span(watch)

    def _make_span(self, watch: RequestWatch) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415 - see above

        assert watch.ended_s is not None  # noqa: S101 - it is over
        wall_ns, now_s = self._wall_clock_ns(), watch.clock()

        def at(time_s: float) -> int:
            return wall_ns - round((now_s - time_s) * 1e9)

        parent = None
        if watch.traceparent is not None:
            parent = self._extract({"traceparent": watch.traceparent})
        span = self._tracer.start_span(
            "generate",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(watch),
            start_time=at(watch.arrival_s),
        )
        for stage, time_s in sorted(watch.stages.items(), key=lambda each: each[1]):
            span.add_event(stage.value, timestamp=at(time_s))
        if watch.outcome in _FAILED:
            span.set_status(Status(StatusCode.ERROR, None if watch.code is None else watch.code.value))
        span.end(at(watch.ended_s))
        self._counts.made += 1


def _attributes(watch: RequestWatch) -> dict[str, str | int | float | bool]:
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.operation.name": "chat",
        "seedance.tenant": watch.tenant,
        "seedance.session": watch.session,
        "seedance.canary": watch.canary,
        "seedance.taken_up": watch.is_taken_up,
        "seedance.outcome": "parked" if watch.outcome is None else watch.outcome.value,
    }
    if watch.stream_id is not None:
        attributes["seedance.stream"] = watch.stream_id
    if watch.code is not None:
        attributes["error.type"] = watch.code.value
    if watch.usage is not None:
        attributes["gen_ai.usage.input_tokens"] = watch.usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = watch.usage.completion_tokens
        attributes["seedance.cached_tokens"] = watch.usage.cached_tokens
    if watch.ttft_s is not None:
        attributes["seedance.ttft_ms"] = watch.ttft_s * 1e3
    if watch.timing is not None:
        for name, seconds in asdict(watch.timing).items():
            attributes[f"seedance.{name.removesuffix('_s')}_ms"] = seconds * 1e3
        attributes["seedance.egress_ms"] = watch.egress_s * 1e3
    return attributes


def _counting(exporter: SpanExporter, counts: TraceStatistics) -> SpanExporter:
    """The same, with what it comes to counted; on the library's thread."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult  # noqa: PLC0415 - see above

    class Counting(SpanExporter):
        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            try:
                result = exporter.export(spans)
            except Exception:  # noqa: BLE001 - whatever it was, the thread goes on
                result = SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS:
                counts.exported += len(spans)
            else:
                counts.failed += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Counting()

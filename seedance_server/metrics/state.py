"""What is counted elsewhere, read at the moment of a scrape.

The parts of the server count in plain numbers as they go; nothing is done for metrics until somebody asks.
So a gauge can't be behind: what it shows is there, or isn't. Only what the engine says of itself is as of its
last step.

It must not know what a scrape looks like.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from attrs import asdict, frozen
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from seedance_server import __version__
from seedance_server.accounts import Account
from seedance_server.admission import Admission
from seedance_server.engine_loop import EngineLoop
from seedance_server.heartbeats import HeartbeatStatistics
from seedance_server.journal.interface import Journal
from seedance_server.metrics.family import Scrape
from seedance_server.metrics.tenant_labels import label_tenants
from seedance_server.readiness import Cause, Readiness
from seedance_server.request_watch import Outcome
from seedance_server.session_registry import SessionRegistry
from seedance_server.tls import TlsStatistics
from seedance_server.tracing import TraceStatistics
from seedance_server.watchdog import Watchdog

__all__ = ["DoorFigures", "Serving", "StateCollector"]


class DoorFigures(Protocol):
    """What the door counts."""

    connections: int
    upgraded: int
    requests: int
    contained: int
    websockets: int
    http: int
    lobby: int

    @property
    def refusals(self) -> Mapping[str, int]:
        """Those turned away, by reason."""

    @property
    def closes(self) -> Mapping[str, int]:
        """WebSockets that are over, by close code."""

    @property
    def travelled(self) -> Mapping[str, int]:
        """Bytes of WebSocket messages, by direction."""

    @property
    def plain(self) -> Mapping[str, int]:
        """The same without compression."""


@frozen(kw_only=True)
class Serving:
    """What there is once a model is served."""

    admission: Admission
    engine_loop: EngineLoop
    journal: Journal
    registry: SessionRegistry
    watchdog: Watchdog


class StateCollector(Collector):
    """Reads the server's parts.

    Args:
        door: Asked for the door's figures.
        heartbeats: Asked for theirs.
        accounts: Of all tenants.
        readiness: Asked whether the server is ready.
        outcomes: Requests that are over, as `RequestMetrics` counts them.
        traces: Asked what became of spans.
        tls: Asked about handshakes.
        most_tenants: Tenants that have series of their own.

    Attributes:
        serving: What answers requests; None until there is a model.
    """

    def __init__(
        self,
        *,
        door: Callable[[], DoorFigures],
        heartbeats: Callable[[], HeartbeatStatistics],
        accounts: Iterable[Account],
        readiness: Callable[[], Readiness],
        outcomes: Mapping[tuple[Outcome, bool], int],
        traces: Callable[[], TraceStatistics],
        tls: Callable[[], TlsStatistics],
        most_tenants: int,
    ) -> None:
        self.serving: Serving | None = None
        self._door = door
        self._heartbeats = heartbeats
        self._accounts = accounts
        self._readiness = readiness
        self._outcomes = outcomes
        self._traces = traces
        self._tls = tls
        self._most_tenants = most_tenants

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: the registry would collect, to see the names, before there is anything."""
        return ()

    def collect(self) -> Iterable[Family]:
        """All figures as of now; on the event loop's thread, like whatever counts them."""
        scrape = Scrape()
        self._read_outcomes(scrape)
        self._read_door(scrape)
        self._read_tenants(scrape)
        self._read_health(scrape)
        if self.serving is not None:
            _read_requests(scrape, self.serving)
            _read_engine(scrape, self.serving.engine_loop)
            _read_journal(scrape, self.serving.journal)
            _read_watchdog(scrape, self.serving.watchdog)
            scrape.put("server", 1, __version__, self.serving.admission.model.name)
        return scrape.families

    def _read_outcomes(self, scrape: Scrape) -> None:
        # Nobody came back for these: they were parked, here or by another process, and end with that.
        abandoned = 0 if self.serving is None else self.serving.journal.statistics().abandoned
        for (outcome, canary), count in self._outcomes.items():
            more = abandoned if outcome is Outcome.ABORT and not canary else 0
            scrape.put("request_success", count + more, outcome.value, str(canary).lower())
        scrape.put("requests_abandoned", abandoned)

    def _read_door(self, scrape: Scrape) -> None:
        door = self._door()
        scrape.put("connections", door.connections)
        scrape.put("connections_upgraded", door.upgraded)
        scrape.put("connections_contained", door.contained)
        scrape.put("http_requests", door.requests)
        scrape.put("websockets", door.websockets)
        scrape.put("http_connections", door.http)
        scrape.put("lobby_connections", door.lobby)
        scrape.put_each("connections_refused", door.refusals)
        scrape.put_each("connections_closed", door.closes)
        scrape.put_each("websocket_bytes", door.travelled)
        scrape.put_each("websocket_plain_bytes", door.plain)
        tls = self._tls()
        scrape.put_each("tls_handshakes_refused", tls.refused)
        scrape.put_each("tls_reloads", {"good": tls.reloads, "failed": tls.failed_reloads})
        hearts = self._heartbeats()
        scrape.put("heartbeats_sent", hearts.sent)
        scrape.put("heartbeats_answered", hearts.answered)
        scrape.put("heartbeat_closes", hearts.dead)
        scrape.put("heartbeat_rtt_seconds", hearts.last_rtt_s)

    def _read_tenants(self, scrape: Scrape) -> None:
        accounts = {account.tenant.name: account for account in self._accounts}
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        for name, label in label_tenants(accounts, self._most_tenants).items():
            account = accounts[name]
            sums["tenant_connections", label] += account.connections
            sums["tenant_requests", label] += account.requests
            sums["tenant_requests_waiting", label] += account.waiting
            sums["tenant_weight", label] += account.tenant.weight
            sums["tenant_prompt_tokens", label] += account.prompt_tokens
            sums["tenant_generation_tokens", label] += account.generated_tokens
            sums["tenant_sent_bytes", label] += account.sent_bytes
        for (metric, label), value in sums.items():
            scrape.put(metric, value, label)
        scrape.put("prompt_tokens", sum(account.prompt_tokens for account in accounts.values()))

    def _read_health(self, scrape: Scrape) -> None:
        readiness = self._readiness()
        scrape.put("ready", readiness.is_ready)
        causes = {reason.cause for reason in readiness.reasons}
        for cause in Cause:
            scrape.put("not_ready", cause in causes, cause.value)
        scrape.put_each("trace_spans", asdict(self._traces()))


def _read_requests(scrape: Scrape, serving: Serving) -> None:
    queue, streams = serving.admission.queue_statistics(), serving.registry.statistics()
    open_requests = serving.admission.open_requests
    # What is open and no stream yet is being prepared or written down.
    waiting = queue.waiting + queue.granted - queue.started + max(0, open_requests - streams.streams)
    scrape.put("num_requests_running", queue.running)
    scrape.put("num_requests_waiting", waiting)
    scrape.put("num_requests_paused", max(0, open_requests - queue.running - waiting))
    scrape.put("admission_queue_requests", queue.waiting)
    scrape.put("admission_turns", queue.turns)
    scrape.put("sessions", streams.sessions)
    scrape.put("streams_unread", streams.unread)


def _read_engine(scrape: Scrape, loop: EngineLoop) -> None:
    counts = loop.statistics()
    engine = counts.engine
    if engine is not None:
        scrape.put("generation_tokens", engine.generated_tokens)
        scrape.put("computed_tokens", engine.computed_tokens)
        scrape.put("engine_steps", engine.steps)
        scrape.put("num_preemptions", engine.preemptions)
        scrape.put("kv_cache_usage_perc", engine.used_blocks / max(1, engine.total_blocks))
        scrape.put("prefix_cache_queries", engine.queried_tokens)
        scrape.put("prefix_cache_hits", engine.reused_tokens)
        scrape.put("spec_decode_num_draft_tokens", engine.drafted_tokens)
        scrape.put("spec_decode_num_accepted_tokens", engine.accepted_tokens)
        scrape.put("engine_recorded_steps", engine.recorded_steps)
        scrape.put("engine_memory_failures", engine.memory_failures)
    scrape.put("engine_pauses", counts.pauses)
    scrape.put_distribution("inter_token_latency_seconds", loop.token_intervals)
    decisions = loop.decision_times.statistics()
    for percentile, seconds in (("50", decisions.p50_s), ("99", decisions.p99_s), ("100", decisions.max_s)):
        scrape.put("flow_decision_seconds", seconds, percentile)


def _read_journal(scrape: Scrape, journal: Journal) -> None:
    counts = journal.statistics()
    scrape.put_distribution("journal_commit_seconds", counts.commit_times)
    scrape.put("journal_operations", counts.operations)
    scrape.put("journal_refusals", counts.refusals)
    scrape.put("journal_queue_bytes", counts.queued_bytes)
    scrape.put("journal_unsettled_operations", counts.unsettled)
    scrape.put("journal_bytes", counts.space.file_bytes)
    scrape.put("journal_free_bytes", counts.space.free_bytes)
    scrape.put("journal_full", counts.full)
    scrape.put("journal_failures", counts.failures)
    scrape.put("journal_reopened", counts.reopened)


def _read_watchdog(scrape: Scrape, watchdog: Watchdog) -> None:
    counts = watchdog.statistics()
    scrape.put("event_loop_stalls", counts.loop_stalls)
    scrape.put("event_loop_longest_stall_seconds", counts.longest_loop_stall_s)

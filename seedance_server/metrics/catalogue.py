"""Every metric that there is, with its kind, its labels and what it means: the only place where that stands.

Names are vLLM's where it has the same thing, so that its boards and habits fit; all begin with ``seedance:``.
`docs/metrics.md` is this table. What isn't in here can't be made, and what is in here is in every scrape of a
server that is ready; both by test.

It must not know where a figure comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from attrs import frozen

__all__ = ["CATALOGUE", "PREFIX", "Metric"]

PREFIX = "seedance:"

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
"""For whole requests and their stages: a first token may take a millisecond, a long prompt minutes."""
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""For one token, and for a commit: from a fast disk to one that is as good as broken."""
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@frozen
class Metric:
    """One metric.

    Attributes:
        name: Without the prefix, and without the ``_total`` of a counter.
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: What it means, one sentence.
        labels: Names of its labels; each has few values, whatever clients send.
        buckets: Bounds of a histogram that is observed here; empty where they are somebody else's.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()

    @property
    def full_name(self) -> str:
        """As it stands in a scrape, but for what a histogram adds."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _histogram(name: str, help_text: str, buckets: Sequence[float], *labels: str) -> Metric:
    return Metric(name, "histogram", help_text, labels, buckets)


def _counter(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "counter", help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help_text, labels)


_METRICS = (
    # ---- requests
    _counter(
        "request_success",
        "Requests that are over, each in exactly one finished_reason: stop, length, abort (cancelled, or "
        "nobody came back for it), error (an ERROR frame ended it), refused (it never began).",
        *("finished_reason", "canary"),
    ),
    _counter(
        "request_failures", "Of those that were refused or ended with an error, by error code.", *("code",)
    ),
    _counter(
        "requests_taken_up", "Streams that were parked, here or by another process, and are gone on with."
    ),
    _counter("requests_parked", "Streams that left memory without an end; they wait in the journal."),
    _counter("requests_abandoned", "Of the parked ones, those that nobody came back for; each is an abort."),
    _counter("requests_replayed", "Requests sent again whose stream was there already: nothing began twice."),
    _histogram(
        "time_to_first_token_seconds",
        "From a request's arrival until its first frame was on the socket.",
        _SECONDS,
        "canary",
    ),
    _histogram(
        "inter_token_latency_seconds",
        "Between two outputs of a generation; not while its reader holds it up.",
        (),
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        "Of a request that is over: from its first frame to its end, for each further token.",
        _SHORT_SECONDS,
    ),
    _histogram(
        "e2e_request_latency_seconds",
        "From a request's arrival until its last frame was committed; of stop and length alone.",
        _SECONDS,
        "canary",
    ),
    _histogram(
        "request_queue_time_seconds", "Stage of the first token: waiting, commits included.", _SECONDS
    ),
    _histogram(
        "request_preprocess_time_seconds", "Stage of the first token: template and tokenizer.", _SECONDS
    ),
    _histogram(
        "request_prefill_time_seconds", "Stage of the first token: the prompt's forward passes.", _SECONDS
    ),
    _histogram(
        "request_first_decode_time_seconds",
        "Stage of the first token: from the prompt's last forward pass to a token that can be shown.",
        _SECONDS,
    ),
    _histogram(
        "request_cache_sync_time_seconds", "Stage of the first token: keys and values moved.", _SECONDS
    ),
    _histogram(
        "request_egress_time_seconds",
        "Stage of the first token: from there through journal and socket.",
        _SECONDS,
    ),
    _histogram("request_prompt_tokens", "Tokens of a request's prompt.", _TOKENS),
    _histogram("request_generation_tokens", "Tokens of a request's answer, whatever ended it.", _TOKENS),
    # ---- what there is now
    _gauge("num_requests_running", "Requests that the engine decodes."),
    _gauge("num_requests_waiting", "Requests that the engine hasn't begun with."),
    _gauge("num_requests_paused", "Requests whose reader holds them up; they take no part in steps."),
    _gauge("sessions", "Sessions in memory."),
    _gauge("streams_unread", "Streams in memory that no connection reads just now."),
    # ---- engine
    _counter("prompt_tokens", "Tokens of prompts that went to the engine."),
    _counter("generation_tokens", "Tokens that the engine has generated."),
    _counter("computed_tokens", "Rows run through the model: prompts, decodes, and what was computed again."),
    _counter("engine_steps", "Forward passes."),
    _counter("num_preemptions", "How often a sequence lost its KV blocks to others."),
    _gauge("kv_cache_usage_perc", "Share of the KV blocks that sequences hold, from 0 to 1."),
    _counter("prefix_cache_queries", "Prompt tokens that were looked up among what the KV pool still holds."),
    _counter("prefix_cache_hits", "Prompt tokens that were found there, and not computed again."),
    _counter("spec_decode_num_draft_tokens", "Tokens that were guessed and run ahead of their turn."),
    _counter("spec_decode_num_accepted_tokens", "Those of them that were right: steps saved."),
    _counter("engine_recorded_steps", "Forward passes that ran as a CUDA graph."),
    _counter("engine_memory_failures", "Steps that the device had no memory for; they ran again in halves."),
    # ---- delivery and flow
    _counter("resumes", "Clients that came back to a stream: live, ended or rejected.", "outcome"),
    _counter("replayed_frames", "Frames that were sent again to clients that came back."),
    _counter(
        "flow_changes", "Edges of a stream's pace: throttle, pause (its window is full), run.", "action"
    ),
    _histogram(
        "window_stall_seconds", "How long streams stood with a full window, once they go on.", _SECONDS
    ),
    _counter("engine_pauses", "Times that a generation was taken out of steps since its reader was slow."),
    _gauge(
        "flow_decision_seconds",
        "From a window's edge to the scheduler's decision, the running step apart; of the newest 4096.",
        "percentile",
    ),
    # ---- admission and tenants
    _gauge("admission_queue_requests", "Requests that wait in line for the engine."),
    _counter("admission_turns", "Requests that had their turn."),
    _gauge("tenant_connections", "Connections open, by tenant.", "tenant"),
    _gauge("tenant_requests", "Requests from SUBMIT to their last frame, by tenant.", "tenant"),
    _gauge("tenant_requests_waiting", "Those of them that never had their turn.", "tenant"),
    _gauge("tenant_weight", "What a tenant's share of the engine is in proportion to.", "tenant"),
    _counter("tenant_prompt_tokens", "Tokens of prompts that went to the engine, by tenant.", "tenant"),
    _counter("tenant_generation_tokens", "Tokens of answers committed, by tenant.", "tenant"),
    _counter("tenant_sent_bytes", "Bytes of messages sent, by tenant.", "tenant"),
    # ---- connections
    _counter("connections", "Connections accepted."),
    _counter("connections_upgraded", "Those of them that became WebSockets."),
    _counter("connections_contained", "Connections that ended by an exception which should not have been."),
    _counter(
        "connections_refused", "Connections and HTTP requests turned away at the door, by reason.", "reason"
    ),
    _counter("tls_handshakes_refused", "TLS handshakes turned away, by reason.", "reason"),
    _counter(
        "tls_reloads", "Certificates read after the first: good, or failed and the old one stays.", "outcome"
    ),
    _counter("connections_closed", "WebSockets that are over, by close code.", "code"),
    _counter("http_requests", "HTTP requests that came, those refused included."),
    _gauge("websockets", "WebSockets open."),
    _counter("websocket_bytes", "Bytes of WebSocket messages as they travelled.", "direction"),
    _counter("websocket_plain_bytes", "The same without compression, which saves the rest.", "direction"),
    _gauge("http_connections", "HTTP connections open that were let in."),
    _gauge("lobby_connections", "Connections open that haven't proved anything yet."),
    _counter("heartbeats_sent", "Silent clients that were asked for a sign of life."),
    _counter("heartbeats_answered", "Those that gave one."),
    _counter("heartbeat_closes", "Those that gave none, and were closed."),
    _gauge("heartbeat_rtt_seconds", "How long the last answered one took."),
    # ---- journal
    _histogram(
        "journal_commit_seconds", "A commit of the journal, from its first operation to the disk.", ()
    ),
    _counter("journal_operations", "Operations committed, refused ones included."),
    _counter("journal_refusals", "Operations refused."),
    _gauge("journal_queue_bytes", "Bytes that wait for the journal's writer."),
    _gauge("journal_unsettled_operations", "Operations whose commit is awaited."),
    _gauge("journal_bytes", "Bytes of the journal's files."),
    _gauge("journal_free_bytes", "Room left on the journal's disk; +Inf where there is no disk."),
    _counter("journal_full", "Commits that found the disk full."),
    _counter("journal_failures", "Times that the storage failed."),
    _counter("journal_reopened", "Times that it was opened again."),
    # ---- health
    _gauge("ready", "1 where new work is taken, as /readyz says."),
    _gauge("not_ready", "1 for each reason why not.", "reason"),
    _counter("event_loop_stalls", "Turns of the event loop that took over 50 ms."),
    _gauge("event_loop_longest_stall_seconds", "The longest turn of all."),
    _counter(
        "trace_spans",
        "Spans: made, exported to the collector, failed; those that are neither wait, or were dropped.",
        "state",
    ),
    _gauge("server", "1, with what runs.", *("version", "model")),
)

CATALOGUE: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _METRICS})
"""All metrics by name, in the order of the documentation."""

"""The part of the settings that bounds what clients can make the server hold, do or wait for.

The help text of each says why it is there. `config.py` puts the parts together, and checks all. It must not
know where a value came from.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from seedance_server.setting import setting_field

__all__ = ["LimitSettings"]


def _limit(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="limits", **more)


@frozen(kw_only=True, slots=False)
class LimitSettings:
    """Every bound on what clients can cause; the texts beside the fields are what ``--help`` prints."""

    max_connections: int = _limit(
        2000,
        "--max-conns",
        "N",
        "open WebSockets and HTTP connections; one more gets 503, since each may hold buffers",
    )
    max_unauthenticated: int = _limit(
        256, "--max-unauthenticated", "N", "connections before WELCOME; above it the oldest gives way"
    )
    max_unauthenticated_per_address: int = _limit(
        16,
        "--max-unauthenticated-per-address",
        "N",
        "the same per IPv4 address or IPv6 /64, loopback apart, so that one attacker can't fill all",
    )
    handshake_timeout_s: float = _limit(
        5.0,
        "--handshake-timeout",
        "SECONDS",
        "time for a request head, and again for HELLO: ends slow drips",
    )
    keep_alive_s: float = _limit(
        75.0,
        "--keep-alive",
        "SECONDS",
        "time for the next request on an HTTP connection; a proxy should let go first, nginx does after 60 s",
    )
    http_send_timeout_s: float = _limit(
        60.0,
        "--http-send-timeout",
        "SECONDS",
        "time for which an HTTP client may read nothing: its stream stands, then it is cut and may come back",
    )
    heartbeat_s: float = _limit(
        30.0, "--heartbeat", "SECONDS", "silence after which a client is asked for a sign of life"
    )
    heartbeat_timeout_s: float = _limit(
        10.0, "--heartbeat-timeout", "SECONDS", "time for that sign; then nobody is there: 4408"
    )
    max_head_bytes: int = _limit(
        16_384,
        "--max-head",
        "SIZE",
        "size of a request head; browsers send under 8 KiB",
    )
    max_message_bytes: int = _limit(
        262_144,
        "--max-message",
        "SIZE",
        "size of a client's message; told in WELCOME",
    )
    receive_bytes_per_second: int = _limit(
        262_144,
        "--receive-rate",
        "SIZE",
        "bytes read a second from one connection; more waits",
    )
    receive_burst_bytes: int = _limit(
        1_048_576,
        "--receive-burst",
        "SIZE",
        "bytes read at once before the rate counts",
    )
    link_bytes_per_second: int = _limit(
        125_000_000,
        "--link-rate",
        "SIZE",
        "bytes a second that fill the network, where the system doesn't know: moves tenants' quotas",
    )
    messages_per_second: float = _limit(
        50.0, "--message-rate", "N", "messages a second and connection, acks apart; beyond it 4429"
    )
    message_burst: int = _limit(200, "--message-burst", "N", "messages at once before the rate counts")
    acks_per_second: float = _limit(
        100.0,
        "--ack-rate",
        "N",
        "acks a second: twice what clients may send, so clock drift cuts no one",
    )
    max_streams: int = _limit(64, "--max-streams", "N", "generations at once on one connection")
    max_generations: int = _limit(
        4096, "--max-generations", "N", "generations at once in all, waiting ones included: bounds memory"
    )
    max_waiting: int = _limit(
        1024, "--max-waiting", "N", "requests that wait for the engine, in all; one more is told to come back"
    )
    max_waiting_per_tenant: int = _limit(
        256, "--max-waiting-per-tenant", "N", "the same of one tenant: it can't fill the line for the others"
    )
    queue_timeout_s: float = _limit(
        60.0, "--queue-timeout", "SECONDS", "a request that waits longer for the engine is told to come back"
    )
    preprocess_workers: int = _limit(
        2, "--preprocess-workers", "N", "prompts tokenised at once: more would take the CPU from decoding"
    )
    stream_buffer_outputs: int = _limit(
        8, "--stream-buffer", "N", "outputs the engine may be ahead of a stream; it pauses at half"
    )
    events_waiting_bytes: int = _limit(
        1 << 20,
        "--events-waiting",
        "SIZE",
        "reports of one connection that wait for the journal: four of its longest messages",
    )
    segment_bytes: int = _limit(
        65_536,
        "--segment",
        "SIZE",
        "text after which a stream commits a segment",
    )
    held_bytes: int = _limit(
        32_768,
        "--held",
        "SIZE",
        "log probabilities that wait for their text; above it they go without, so that no piece is too large",
    )
    outbox_bytes: int = _limit(
        262_144,
        "--outbox",
        "SIZE",
        "frames waiting for one socket; streams wait above it",
    )
    outbox_control_messages: int = _limit(
        1024, "--outbox-control", "N", "answers waiting for one socket; above it the peer isn't reading: cut"
    )
    batch_bytes: int = _limit(
        65_536,
        "--batch",
        "SIZE",
        "frames sent as one message: one send's worth",
    )
    compression: str = _limit(
        "auto",
        "--compression",
        "KIND",
        "zstd on a connection where it measures shorter, or never: it takes 0.12 MB there while streams run",
        choices=("auto", "off"),
    )
    send_timeout_s: float = _limit(
        10.0, "--send-timeout", "SECONDS", "time for one message to leave; then the peer isn't reading: cut"
    )
    close_timeout_s: float = _limit(
        2.0, "--close-timeout", "SECONDS", "time for a closing handshake: a peer that ignores it is cut"
    )
    stall_timeout_s: float = _limit(
        60.0, "--stall-timeout", "SECONDS", "readiness turns red when a step, token or commit takes longer"
    )
    idle_check_s: float = _limit(
        1.0,
        "--idle-check",
        "SECONDS",
        "with nothing to do for so long, the engine compares its books, so that a bug shows early; 0: never",
    )

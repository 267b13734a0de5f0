"""Every bound of the client, each with its reason.

Nothing in this package waits or buffers without one of these. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

__all__ = ["Limits"]


def _positive(_: object, attribute: Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0, not {value}")


@frozen(kw_only=True)
class Limits:
    """Bounds of one client; the defaults suit a server on the same continent.

    Attributes:
        connect_timeout_s: Name, TCP and TLS together. Picked, not measured.
        handshake_timeout_s: The upgrade, and after it HELLO to WELCOME, each. The server's own bound is 5.
        send_timeout_s: One message into the socket; a server that reads nothing for that long is gone.
        close_timeout_s: A clean close; after it the socket is torn down.
        ack_interval_s: At least this long between two ACK messages of a connection; the protocol's 20 ms.
        ack_delay_s: What was taken is acknowledged no later than this, so that one message tells of several
            frames; four of a stream do not wait. The server takes up to 200 ms, the way there and back
            included, for no reason to send less.
        reconnect_timeout_s: From the loss of a connection until the server greets again; then its streams
            fail. Restarting a server and loading a large model takes about that long, and the circuit breaker
            has tried seven times by then: its pauses of 1, 2, 4, 8, 16 and 30 s make 61.
        circuit_open_max_s: The longest pause of the circuit breaker for an endpoint that keeps failing.
        heartbeat_silence_s: While somebody waits for a server that says nothing, it is asked for a sign of
            life after that long. The protocol's figure.
        heartbeat_timeout_s: Until that must have come; then the connection counts as cut. The protocol's too.
        max_message_bytes: One inbound message; the protocol's default.
        max_streams: Streams at once on one connection; the server may allow fewer. Further ones get another
            connection.
        max_connections: At once, so no more can be idle either; beyond them requests wait.
        idle_connection_s: A connection that carries nothing for that long is closed; its session is kept.
        max_sessions: Sessions kept, so that ``continues`` finds earlier turns after their server left, at a
            few kilobytes each. The oldest without streams goes first.
        max_buffered_frames: Frames of one stream that came on one connection and that its reader has not
            taken; the protocol's largest window. Each reconnect allows for another window, so a reader that
            takes nothing meanwhile holds more, in the end ``max_response_bytes``.
        max_buffered_bytes: Their text. The window holds 256 KiB as sent, and differences can be a quarter
            of the text that they stand for; one message more may be on its way.
        max_reports: Events reported and not yet kept by a server.
        max_report_bytes: Their payloads and actions.
        report_interval_s: How long the first report of a batch waits for company.
        max_response_bytes: The text of one answer. Far above any model's context.
    """

    connect_timeout_s: float = field(default=10.0, validator=_positive)
    handshake_timeout_s: float = field(default=10.0, validator=_positive)
    send_timeout_s: float = field(default=10.0, validator=_positive)
    close_timeout_s: float = field(default=2.0, validator=_positive)
    ack_interval_s: float = field(default=0.020, validator=_positive)
    ack_delay_s: float = field(default=0.100, validator=_positive)
    reconnect_timeout_s: float = field(default=100.0, validator=_positive)
    circuit_open_max_s: float = field(default=30.0, validator=_positive)
    heartbeat_silence_s: float = field(default=10.0, validator=_positive)
    heartbeat_timeout_s: float = field(default=5.0, validator=_positive)
    max_message_bytes: int = field(default=262_144, validator=_positive)
    max_streams: int = field(default=64, validator=_positive)
    max_connections: int = field(default=100, validator=_positive)
    idle_connection_s: float = field(default=30.0, validator=_positive)
    max_sessions: int = field(default=8, validator=_positive)
    max_buffered_frames: int = field(default=128, validator=_positive)
    max_buffered_bytes: int = field(default=5 * 262_144, validator=_positive)
    max_reports: int = field(default=10_000, validator=_positive)
    max_report_bytes: int = field(default=1_048_576, validator=_positive)
    report_interval_s: float = field(default=0.1, validator=_positive)
    max_response_bytes: int = field(default=64 * 1024 * 1024, validator=_positive)

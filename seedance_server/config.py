"""Every setting and every limit of the server, in one frozen value that is validated once.

Each field carries its help text, which for a limit is its reason, its default and how to read it from text;
`flags.py` derives the command line and the environment from that, so no setting can lack either. A `Config`
that exists is usable: contradictions are refused here, never met later.

It must not know where a value came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from seedance_server.engine_settings import EngineSettings
from seedance_server.errors import ConfigError
from seedance_server.setting import Setting, is_loopback, parse_bytes, setting_field

__all__ = ["Config"]

_MIN_API_KEY_CHARS = 16
_MAY_BE_ZERO = {
    "idle_check_s",
    "journal_reserve_bytes",
    "orphan_grace_s",
    "port",
    "run_ahead_frames",
    "shutdown_timeout_s",
    "speculative_tokens",
}


def _service(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="service", **more)


def _limit(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="limits", **more)


def _delivery(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="reliable delivery", **more)


@frozen(kw_only=True)
class Config(EngineSettings):
    """All settings; the texts beside the fields are what ``--help`` prints.

    Raises:
        ConfigError: On construction, naming the first setting that can't be used.
    """

    host: str = _service(
        "127.0.0.1", "--host", "ADDRESS", "address to listen on; beyond loopback a key is needed"
    )
    port: int = _service(8080, "--port", "PORT", "port to listen on; 0 picks a free one")
    api_key: str | None = attrs.field(
        default=None,
        repr=False,
        metadata={
            "setting": Setting(
                help="key that clients must send; better set by environment, flags are visible to others",
                parse=str,
                flag="--api-key",
                metavar="KEY",
                group="service",
            )
        },
    )
    keys_path: Path | None = _service(  # noqa: RUF009
        None,
        "--keys",
        "PATH",
        "file of tenants and their keys, see `seedance-server keys --help`; read again when it changes",
        parse=Path,
    )
    allow_origins: tuple[str, ...] = _service(
        (),
        "--allow-origin",
        "ORIGIN",
        "web page origin that may connect, e.g. https://chat.example; repeatable",
        parse=str,
        repeatable=True,
    )
    shutdown_timeout_s: float = _service(
        30.0, "--shutdown-timeout", "SECONDS", "time for running streams to end after SIGTERM"
    )
    log_level: str = _service(
        "info",
        "--log-level",
        "LEVEL",
        "least severe log line printed",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _service(
        "console", "--log-format", "FORMAT", "how log lines look", choices=("console", "json")
    )

    durability: str = _delivery(
        "committed",
        "--durability",
        "KIND",
        "what happens to a piece before it is sent: in the journal, on disk; or nothing, and no resume",
        choices=("committed", "none"),
    )
    journal_path: Path | None = _delivery(  # noqa: RUF009
        None,
        "--journal",
        "PATH",
        "the journal's file, on a local disk (default: seedance/journal.db in the user's state directory)",
        parse=Path,
    )
    orphan_grace_s: float = _delivery(
        30.0,
        "--orphan-grace",
        "SECONDS",
        "a stream that nobody reads goes on so long, then waits in the journal: most cuts are shorter",
    )
    pause_park_s: float = _delivery(
        10.0,
        "--pause-park",
        "SECONDS",
        "a reader may let its stream stand so long before the stream's KV memory goes to others",
    )
    run_ahead_frames: int = _delivery(
        0, "--run-ahead", "N", "frames that may be generated into the journal ahead of a full window"
    )
    resume_window_s: float = _delivery(
        600.0,
        "--resume-window",
        "SECONDS",
        "time for a client to come back to a stream that runs; then it is abandoned",
    )
    retention_s: float = _delivery(
        3600.0, "--retention", "SECONDS", "time for which a stream that has ended can be read again"
    )
    idempotency_s: float = _delivery(
        86_400.0, "--idempotency-window", "SECONDS", "time for which a request sent again is recognised"
    )
    journal_quota_bytes: int = _delivery(
        1 << 30,
        "--journal-quota",
        "SIZE",
        "what streams may take in the journal; the oldest that ended make room",
        parse=parse_bytes,
    )
    journal_reserve_bytes: int = _delivery(
        1 << 26,
        "--journal-reserve",
        "SIZE",
        "free space on the journal's disk that running streams keep for themselves: new ones are refused",
        parse=parse_bytes,
    )
    journal_patience_s: float = _delivery(
        10.0,
        "--journal-patience",
        "SECONDS",
        "time for which a stream waits for a full or slow journal before it ends with an error",
    )
    events_path: Path | None = _delivery(  # noqa: RUF009
        None,
        "--events",
        "PATH",
        "file for what clients report of their users, a line of JSON each (default: reports are refused)",
        parse=Path,
    )
    events_rotate_bytes: int = _delivery(
        1 << 26,
        "--events-rotate",
        "SIZE",
        "size at which that file is put aside as PATH.1, PATH.2 ...",
        parse=parse_bytes,
    )
    event_sinks: tuple[str, ...] = _delivery(
        (),
        "--event-sink",
        "MODULE:NAME",
        "where reports go as well: NAME() in MODULE makes an EventSink; repeatable",
        parse=str,
        repeatable=True,
    )
    events_quota_bytes: int = _delivery(
        1 << 26,
        "--events-quota",
        "SIZE",
        "what a tenant's reports may take while they wait for a sink; more are refused for a while",
        parse=parse_bytes,
    )
    checkpoint_interval_ms: int = _delivery(
        100, "--checkpoint-interval", "MS", "least time between two checkpoints to one client: a round trip"
    )
    tail_bytes: int = _delivery(
        262_144,
        "--tail",
        "SIZE",
        "newest frames of a stream kept in memory: one window; older ones are read from the journal",
        parse=parse_bytes,
    )

    max_connections: int = _limit(
        2000, "--max-conns", "N", "open WebSockets; one more gets 503, since each may hold buffers"
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
    heartbeat_s: float = _limit(
        30.0, "--heartbeat", "SECONDS", "silence after which a client is asked for a sign of life"
    )
    heartbeat_timeout_s: float = _limit(
        10.0, "--heartbeat-timeout", "SECONDS", "time for that sign; then nobody is there: 4408"
    )
    max_head_bytes: int = _limit(
        16_384, "--max-head", "SIZE", "size of a request head; browsers send under 8 KiB", parse=parse_bytes
    )
    max_message_bytes: int = _limit(
        262_144, "--max-message", "SIZE", "size of a client's message; told in WELCOME", parse=parse_bytes
    )
    receive_bytes_per_second: int = _limit(
        262_144,
        "--receive-rate",
        "SIZE",
        "bytes read a second from one connection; more waits",
        parse=parse_bytes,
    )
    receive_burst_bytes: int = _limit(
        1_048_576, "--receive-burst", "SIZE", "bytes read at once before the rate counts", parse=parse_bytes
    )
    link_bytes_per_second: int = _limit(
        125_000_000,
        "--link-rate",
        "SIZE",
        "bytes a second that fill the network, where the system doesn't know: moves tenants' quotas",
        parse=parse_bytes,
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
        parse=parse_bytes,
    )
    segment_bytes: int = _limit(
        65_536, "--segment", "SIZE", "text after which a stream commits a segment", parse=parse_bytes
    )
    held_bytes: int = _limit(
        32_768,
        "--held",
        "SIZE",
        "log probabilities that wait for their text; above it they go without, so that no piece is too large",
        parse=parse_bytes,
    )
    outbox_bytes: int = _limit(
        262_144, "--outbox", "SIZE", "frames waiting for one socket; streams wait above it", parse=parse_bytes
    )
    outbox_control_messages: int = _limit(
        1024, "--outbox-control", "N", "answers waiting for one socket; above it the peer isn't reading: cut"
    )
    batch_bytes: int = _limit(
        65_536,
        "--batch",
        "SIZE",
        "frames sent as one message: one send's worth",
        parse=parse_bytes,
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

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            self._check_range(field.name, getattr(self, field.name))
        if self.port > 65535:
            raise ConfigError("--port", f"must be from 0 to 65535, not {self.port}")
        if self.api_key is not None and len(self.api_key) < _MIN_API_KEY_CHARS:
            raise ConfigError("--api-key", f"must have at least {_MIN_API_KEY_CHARS} characters")
        if self.api_key is None and self.keys_path is None and not is_loopback(self.host):
            raise ConfigError(
                "--api-key",
                f"or --keys is needed to listen on {self.host}: else everybody could use this server",
            )
        if self.stream_buffer_outputs < 4:
            raise ConfigError("--stream-buffer", "must be at least 4: a pause takes effect one step later")
        if self.batch_bytes > self.outbox_bytes:
            raise ConfigError("--batch", "must be at most --outbox")
        if self.orphan_grace_s > self.resume_window_s:
            raise ConfigError("--orphan-grace", "must be at most --resume-window")

    def _check_range(self, name: str, value: object) -> None:
        setting: Setting = attrs.fields_dict(type(self))[name].metadata["setting"]
        if setting.choices and value not in setting.choices:
            raise ConfigError(setting.flag, f"must be one of {', '.join(setting.choices)}, not {value!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        least = 0 if name in _MAY_BE_ZERO else 1e-9
        # Written to accept, not to refuse, since NaN compares false with everything.
        if not least <= value < 2**63:
            raise ConfigError(
                setting.flag, f"must be {'at least 0' if least == 0 else 'above 0'}, not {value}"
            )

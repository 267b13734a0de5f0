"""The part of the settings that is about reliable delivery: the journal, resume, what clients report.

`config.py` puts the parts together, and checks all. It must not know where a value came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from seedance_server.setting import setting_field

__all__ = ["DeliverySettings"]


def _delivery(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="reliable delivery", **more)


@frozen(kw_only=True, slots=False)
class DeliverySettings:
    """What is kept for whom, where and how long; the texts beside the fields are what ``--help`` prints."""

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
    max_attempts: int = _delivery(
        3,
        "--max-attempts",
        "N",
        "processes that may end with a stream at the same frame; the next ends it, for it may be the cause",
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
    )
    journal_reserve_bytes: int = _delivery(
        1 << 26,
        "--journal-reserve",
        "SIZE",
        "free space on the journal's disk that running streams keep for themselves: new ones are refused",
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
    )
    checkpoint_interval_ms: int = _delivery(
        100, "--checkpoint-interval", "MS", "least time between two checkpoints to one client: a round trip"
    )
    digest_interval_ms: int = _delivery(
        5000,
        "--digest-interval",
        "MS",
        "least time between two digests of a stream that a client checks: one weighs as much as some tokens",
    )
    tail_bytes: int = _delivery(
        262_144,
        "--tail",
        "SIZE",
        "newest frames of a stream kept in memory: one window; older ones are read from the journal",
    )

"""What may be forgotten, and how: oldest first, a few rows at a time, never a live stream.

Deleting frames and moving the stream's `first_available_id` is one transaction, so a reader finds frames or
the mark. What is left of a stream without frames is the memory that it was, as long as its idempotency key is
kept: a repeated request must not start a second generation because the first answer is gone.
"""

from __future__ import annotations

from seedance_server.journal.errors import TenantQuotaExceeded
from seedance_server.journal.event_rows import drop_event_marks
from seedance_server.journal.records import SweepResult
from seedance_server.journal.session_rows import STREAM_COLUMNS, stream_record
from seedance_server.journal.transaction import Transaction

__all__ = ["ROW_BYTES", "make_room", "make_room_for_tenant", "stored_size", "sweep_step"]

ROW_BYTES = 24
"""What a row costs beside its bytes: keys, header and its part of the page; picked, not measured."""
_SESSIONS_AT_ONCE = 16
_KEYS_AT_ONCE = 128


def stored_size(*sizes: int) -> int:
    """What a row with values of these ``sizes`` counts against a quota."""
    return ROW_BYTES + sum(sizes)


def sweep_step(tx: Transaction) -> SweepResult:
    """Forgets one small portion; an empty result means that there is nothing left to forget."""
    for step in (_abandon, _expire, _enforce_quotas, _drop_sessions, _drop_requests, drop_event_marks):
        if result := step(tx):
            return result
    return SweepResult()


def _abandon(tx: Transaction) -> SweepResult:
    """Ends live streams of clients that didn't come back in time; who still writes them is fenced."""
    gone = tx.rows(
        "SELECT session_id FROM sessions WHERE released_ms <= ? AND EXISTS("
        "SELECT 1 FROM streams WHERE streams.session_id = sessions.session_id AND state = 'live') LIMIT ?",
        tx.before(tx.limits.session_s),
        _SESSIONS_AT_ONCE,
    )
    abandoned = []
    for (session_id,) in gone:
        tx.change("UPDATE sessions SET epoch = epoch + 1 WHERE session_id = ?", session_id)
        abandoned += tx.rows(_ABANDON, tx.now_ms, session_id)
    return SweepResult(abandoned=tuple(map(stream_record, abandoned)))


_ABANDON = f"""
UPDATE streams SET state = 'abandoned', ended_ms = ? WHERE session_id = ? AND state = 'live'
RETURNING {STREAM_COLUMNS}
"""  # noqa: S608


def _expire(tx: Transaction) -> SweepResult:
    row = tx.row(
        "SELECT stream_key FROM streams WHERE state IN ('finished', 'abandoned') AND ended_ms <= ? "
        "ORDER BY ended_ms, stream_key LIMIT 1",
        tx.before(tx.limits.retention_s),
    )
    return SweepResult() if row is None else _trim(tx, row[0], tx.limits.sweep_rows)


def _enforce_quotas(tx: Transaction) -> SweepResult:
    used = tx.rows("SELECT tenant, sum(stored_bytes) FROM streams WHERE state <> 'expired' GROUP BY tenant")
    for tenant, used_bytes in used:
        if used_bytes <= tx.limits.quota_of(tenant):
            continue
        if (stream_key := _oldest(tx, tenant)) is not None:
            return _trim(tx, stream_key, tx.limits.sweep_rows)
    return SweepResult()


def _drop_sessions(tx: Transaction) -> SweepResult:
    gone = tx.rows(
        "DELETE FROM sessions WHERE session_id IN (SELECT session_id FROM sessions WHERE released_ms <= ? "
        "AND NOT EXISTS(SELECT 1 FROM streams WHERE streams.session_id = sessions.session_id "
        "AND state <> 'expired') LIMIT ?) RETURNING session_id",
        tx.before(tx.limits.session_s),
        _KEYS_AT_ONCE,
    )
    for (session_id,) in gone:
        tx.change("DELETE FROM early_messages WHERE session_id = ?", session_id)
    return SweepResult(sessions=len(gone))


def _drop_requests(tx: Transaction) -> SweepResult:
    gone = tx.rows(
        "SELECT tenant, idempotency_key, stream_key FROM requests JOIN streams USING(stream_key, tenant) "
        "WHERE requests.created_ms <= ? AND state = 'expired' ORDER BY requests.created_ms LIMIT ?",
        tx.before(tx.limits.idempotency_s),
        _KEYS_AT_ONCE,
    )
    for tenant, key, stream_key in gone:
        tx.change("DELETE FROM requests WHERE tenant = ? AND idempotency_key = ?", tenant, key)
        tx.change("DELETE FROM streams WHERE stream_key = ?", stream_key)
    return SweepResult(requests=len(gone))


def _oldest(tx: Transaction, tenant: str) -> int | None:
    """The tenant's stream that ended first and has frames still."""
    row = tx.row(
        "SELECT stream_key FROM streams WHERE tenant = ? AND state IN ('finished', 'abandoned') "
        "ORDER BY ended_ms, stream_key LIMIT 1",
        tenant,
    )
    return None if row is None else row[0]


def _trim(tx: Transaction, stream_key: int, rows: int) -> SweepResult:
    """Deletes the first ``rows`` frames of an ended stream; what the takeover needs goes with the last."""
    first, end = tx.row(
        "SELECT first_available_id, next_frame_id FROM streams WHERE stream_key = ?", stream_key
    )
    first_kept = min(first + rows, end)
    freed = tx.rows(
        "DELETE FROM frames WHERE stream_key = ? AND frame_id < ? "
        "RETURNING length(payload), length(token_ids)",
        stream_key,
        first_kept,
    )
    expired = first_kept == end
    if expired:
        tx.change("DELETE FROM stream_inputs WHERE stream_key = ?", stream_key)
        tx.change("DELETE FROM stream_attempts WHERE stream_key = ?", stream_key)
        tx.change(
            "UPDATE streams SET first_available_id = ?, state = 'expired', stored_bytes = 0 "
            "WHERE stream_key = ?",
            end,
            stream_key,
        )
    else:
        tx.change(
            "UPDATE streams SET first_available_id = ?, stored_bytes = stored_bytes - ? WHERE stream_key = ?",
            first_kept,
            sum(stored_size(*sizes) for sizes in freed),
            stream_key,
        )
    return SweepResult(frames=len(freed), expired=int(expired))


def make_room_for_tenant(tx: Transaction, tenant: str, size: int) -> None:
    """Forces the tenant's oldest ended streams out until ``size`` bytes more are within its quota.

    Raises:
        TenantQuotaExceeded: What is left are live streams.
    """
    (used,) = tx.row(
        "SELECT coalesce(sum(stored_bytes), 0) FROM streams WHERE tenant = ? AND state <> 'expired'", tenant
    )
    limit_bytes = tx.limits.quota_of(tenant)
    while used + size > limit_bytes:
        stream_key = _oldest(tx, tenant)
        if stream_key is None:
            raise TenantQuotaExceeded(tenant, used, limit_bytes)
        (freed,) = tx.row("SELECT stored_bytes FROM streams WHERE stream_key = ?", stream_key)
        _trim(tx, stream_key, _ALL)
        used -= freed


_ALL = 2**62


def make_room(tx: Transaction) -> SweepResult:
    """Forces the oldest ended stream out, of any tenant, for a disk that is full."""
    row = tx.row(
        "SELECT stream_key FROM streams WHERE state IN ('finished', 'abandoned') "
        "ORDER BY ended_ms, stream_key LIMIT 1"
    )
    return SweepResult() if row is None else _trim(tx, row[0], tx.limits.sweep_rows)

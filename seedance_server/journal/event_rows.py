"""Reported events in SQLite: each batch once, until every sink has taken it, and a mark that it was there.

A row is one batch of one session. Its key rises in the order of commits and never comes again, so a sink
needs no more than the last key that it has taken. When all have, the payload goes and the row stays as a mark
by which the batch is known should it be sent again: a client keeps so many unanswered at most, so older marks
go, and all with their session.
"""

from __future__ import annotations

from typing import Any

import apsw

from seedance_server.journal.errors import EventsFull, JournalFull
from seedance_server.journal.records import EventBatch, NewEventBatch, SweepResult
from seedance_server.journal.session_rows import mark_processed, owned
from seedance_server.journal.transaction import Transaction

__all__ = ["commit_events", "drop_event_marks", "event_cursor", "read_events", "take_events"]

_BATCH_OVERHEAD_BYTES = 64
"""What a batch counts beside its payload: keys and its part of two pages; picked, not measured."""
_PRUNE_EVERY = 64
"""Batches between two looks for marks that are old: the look reads as many rows as are kept."""
_DROPPED_AT_ONCE = 512


def take_events(tx: Transaction, session_id: str, epoch: int, batch: NewEventBatch) -> int:
    """See `Journal.take_events`."""
    tenant, last_id, _ = owned(tx, session_id, epoch)
    known = tx.row(
        "SELECT 1 FROM event_batches WHERE session_id = ? AND batch_id = ?", session_id, batch.batch_id
    )
    if known is None:
        _insert(tx, session_id, tenant, batch)
    return mark_processed(tx, session_id, last_id, batch.sequence_id)


def _insert(tx: Transaction, session_id: str, tenant: str, batch: NewEventBatch) -> None:
    size = len(batch.payload) + _BATCH_OVERHEAD_BYTES
    (waiting,) = tx.row("SELECT coalesce(max(waiting_bytes), 0) FROM event_totals WHERE tenant = ?", tenant)
    if waiting + size > tx.limits.event_bytes:
        raise EventsFull(tenant, waiting, tx.limits.event_bytes)
    if tx.is_nearly_full():
        raise JournalFull(new_work=True)
    (key,) = tx.row(
        "INSERT INTO event_batches(session_id, tenant, batch_id, received_ms, size, payload) "
        "VALUES(?, ?, ?, ?, ?, ?) RETURNING event_key",
        session_id,
        tenant,
        batch.batch_id,
        tx.now_ms,
        size,
        batch.payload,
    )
    tx.change(
        "INSERT INTO event_totals(tenant, waiting_bytes) VALUES(?1, ?2) "
        "ON CONFLICT(tenant) DO UPDATE SET waiting_bytes = waiting_bytes + ?2",
        tenant,
        size,
    )
    if key % _PRUNE_EVERY == 0:
        tx.change(_PRUNE, session_id, tx.limits.event_marks)


_PRUNE = """
DELETE FROM event_batches WHERE session_id = ?1 AND payload IS NULL AND batch_id <= (
    SELECT batch_id FROM event_batches WHERE session_id = ?1 ORDER BY batch_id DESC LIMIT 1 OFFSET ?2)
"""


def read_events(db: apsw.Connection, after_key: int, count: int, size: int) -> tuple[EventBatch, ...]:
    """See `Journal.read_events`; ``count`` batches of ``size`` bytes at most, or one that is larger."""
    batches: list[EventBatch] = []
    rows: Any = db.execute(
        "SELECT event_key, session_id, tenant, batch_id, received_ms, payload FROM event_batches "
        "WHERE event_key > ? AND payload IS NOT NULL ORDER BY event_key LIMIT ?",
        (after_key, count),
    )
    for key, session_id, tenant, batch_id, received_ms, payload in rows:
        size -= len(payload)
        if batches and size < 0:
            break
        batches.append(
            EventBatch(
                key=key,
                session_id=session_id,
                tenant=tenant,
                batch_id=batch_id,
                received_ms=received_ms,
                payload=payload,
            )
        )
    return tuple(batches)


def event_cursor(db: apsw.Connection, sink: str) -> int:
    """See `Journal.event_cursor`."""
    row: Any = db.execute("SELECT event_key FROM event_cursors WHERE sink = ?", (sink,)).fetchone()
    return 0 if row is None else row[0]


def commit_events(tx: Transaction, sink: str, key: int, forget_up_to: int) -> None:
    """See `Journal.commit_events`."""
    tx.change(
        "INSERT INTO event_cursors(sink, event_key) VALUES(?1, ?2) "
        "ON CONFLICT(sink) DO UPDATE SET event_key = max(event_key, ?2)",
        sink,
        key,
    )
    taken = tx.rows(
        "SELECT tenant, sum(size) FROM event_batches WHERE payload IS NOT NULL AND event_key <= ? "
        "GROUP BY tenant",
        forget_up_to,
    )
    for tenant, size in taken:
        tx.change("UPDATE event_totals SET waiting_bytes = waiting_bytes - ? WHERE tenant = ?", size, tenant)
    tx.change(
        "UPDATE event_batches SET payload = NULL, size = 0 WHERE payload IS NOT NULL AND event_key <= ?",
        forget_up_to,
    )


def drop_event_marks(tx: Transaction) -> SweepResult:
    """Forgets a portion of the marks of sessions that are gone."""
    gone = tx.change(
        "DELETE FROM event_batches WHERE event_key IN (SELECT event_key FROM event_batches "
        "WHERE payload IS NULL AND session_id NOT IN (SELECT session_id FROM sessions) LIMIT ?)",
        _DROPPED_AT_ONCE,
    )
    return SweepResult(event_marks=gone)

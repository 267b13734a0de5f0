"""Sessions in SQLite: who owns one, and which messages of its client were processed.

Ownership is one integer, the epoch. Whoever claims a session adds one to it, in the same transaction in which
it reads what is there, so a reader of that answer knows that nothing was added behind its back.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from typing import Any

from seedance_server.journal.errors import Fenced, SessionNotFound, TooManyEarlyMessages
from seedance_server.journal.records import (
    ClaimedSession,
    NewSession,
    SessionRecord,
    StreamRecord,
    StreamState,
)
from seedance_server.journal.transaction import Transaction

__all__ = [
    "STREAM_COLUMNS",
    "adopt_session",
    "claim_session",
    "create_session",
    "mark_processed",
    "owned",
    "record_message",
    "recover",
    "release_all",
    "release_session",
    "stream_record",
]

_COLUMNS = "session_id, tenant, epoch, last_sequence_id, next_stream_id, created_ms, released_ms"
_CREATE = f"""
INSERT INTO sessions(session_id, tenant, token_hash, epoch, created_ms) SELECT ?1, ?2, ?3, 1, ?4
WHERE NOT EXISTS(SELECT 1 FROM streams WHERE session_id = ?1)
ON CONFLICT DO NOTHING RETURNING {_COLUMNS}
"""  # noqa: S608
_NO_HASH = bytes(32)
STREAM_COLUMNS = (
    "session_id, stream_id, tenant, state, first_available_id, next_frame_id, text_bytes, stored_bytes, "
    "created_ms, ended_ms, finish"
)
"""Of a `StreamRecord`, in the order that `stream_record` takes."""


def stream_record(row: Sequence[Any]) -> StreamRecord:
    """The record of a row of `STREAM_COLUMNS`."""
    return StreamRecord(
        session_id=row[0],
        stream_id=row[1],
        tenant=row[2],
        state=StreamState(row[3]),
        first_available_id=row[4],
        next_frame_id=row[5],
        text_bytes=row[6],
        stored_bytes=row[7],
        created_ms=row[8],
        ended_ms=row[9],
        finish=row[10],
    )


def _session_record(row: Sequence[Any]) -> SessionRecord:
    return SessionRecord(
        session_id=row[0],
        tenant=row[1],
        epoch=row[2],
        last_sequence_id=row[3],
        next_stream_id=row[4],
        created_ms=row[5],
        released_ms=row[6],
    )


def create_session(tx: Transaction, session: NewSession) -> SessionRecord:
    """See `Journal.create_session`."""
    row = tx.row(
        _CREATE,
        session.session_id,
        session.tenant,
        session.token_hash,
        tx.now_ms,
    )
    if row is None:
        raise ValueError(f"there is a session {session.session_id}, or there was")
    return _session_record(row)


def claim_session(tx: Transaction, session_id: str, tenant: str, token_hash: bytes) -> ClaimedSession:
    """See `Journal.claim_session`."""
    row = tx.row("SELECT tenant, token_hash FROM sessions WHERE session_id = ?", session_id)
    known_tenant, known_hash = row or ("", _NO_HASH)
    # Both compared always, and a session that isn't there like one that is: one answer, one timing.
    is_tenant = compare_digest(known_tenant.encode(), tenant.encode())
    is_token = compare_digest(known_hash, token_hash)
    if row is None or not (is_tenant & is_token):
        raise SessionNotFound
    return _take(tx, session_id, "released_ms = NULL")


def adopt_session(tx: Transaction, session_id: str) -> ClaimedSession:
    """See `Journal.adopt_session`."""
    return _take(tx, session_id, "released_ms = released_ms")


def _take(tx: Transaction, session_id: str, attachment: str) -> ClaimedSession:
    row = tx.row(
        f"UPDATE sessions SET epoch = epoch + 1, {attachment} WHERE session_id = ? RETURNING {_COLUMNS}",  # noqa: S608
        session_id,
    )
    if row is None:
        raise SessionNotFound
    streams = tx.rows(
        f"SELECT {STREAM_COLUMNS} FROM streams WHERE session_id = ? ORDER BY stream_id",  # noqa: S608
        session_id,
    )
    return ClaimedSession(session=_session_record(row), streams=tuple(map(stream_record, streams)))


def recover(tx: Transaction) -> tuple[ClaimedSession, ...]:
    """See `Journal.recover`."""
    live = tx.rows("SELECT DISTINCT session_id FROM streams WHERE state = 'live' ORDER BY session_id")
    return tuple(adopt_session(tx, session_id) for (session_id,) in live)


def owned(tx: Transaction, session_id: str, epoch: int) -> Any:
    """The row (tenant, last_sequence_id, next_stream_id) of a session that the caller owns.

    Raises:
        SessionNotFound: There is none.
        Fenced: It has another owner.
    """
    row = tx.row(
        "SELECT epoch, tenant, last_sequence_id, next_stream_id FROM sessions WHERE session_id = ?",
        session_id,
    )
    if row is None:
        raise SessionNotFound
    if row[0] != epoch:
        raise Fenced(session_id, epoch, row[0])
    return row[1:]


def release_session(tx: Transaction, session_id: str, epoch: int) -> None:
    """See `Journal.release_session`."""
    owned(tx, session_id, epoch)
    tx.change(
        "UPDATE sessions SET released_ms = ? WHERE session_id = ? AND released_ms IS NULL",
        tx.now_ms,
        session_id,
    )


def release_all(tx: Transaction) -> None:
    """Gives every session its whole time to be claimed again, as a process starts: no client could before.

    Times in the future, from a clock that was wrong, become now.
    """
    tx.change("UPDATE sessions SET released_ms = ?", tx.now_ms)
    tx.change(
        "UPDATE streams SET ended_ms = ? WHERE state IN ('finished', 'abandoned') AND ended_ms > ?",
        tx.now_ms,
        tx.now_ms,
    )
    tx.change("UPDATE requests SET created_ms = ? WHERE created_ms > ?", tx.now_ms, tx.now_ms)


def record_message(tx: Transaction, session_id: str, epoch: int, sequence_id: int) -> int:
    """See `Journal.record_message`."""
    _, last_id, _ = owned(tx, session_id, epoch)
    return mark_processed(tx, session_id, last_id, sequence_id)


def mark_processed(tx: Transaction, session_id: str, last_id: int, sequence_id: int) -> int:
    """Moves a session's ``last_sequence_id`` from ``last_id`` on as far as there is no gap; returns it.

    Raises:
        TooManyEarlyMessages: Too many are ahead of a missing one.
    """
    if sequence_id <= last_id:
        return last_id
    early = [row[0] for row in tx.rows(_EARLY, session_id)]
    if sequence_id > last_id + 1:
        if sequence_id not in early:
            if len(early) >= tx.limits.early_messages:
                raise TooManyEarlyMessages(last_id + 1, tx.limits.early_messages)
            tx.change("INSERT INTO early_messages VALUES(?, ?)", session_id, sequence_id)
        return last_id
    last_id = sequence_id
    for early_id in early:
        if early_id != last_id + 1:
            break
        last_id = early_id
    if early:
        tx.change("DELETE FROM early_messages WHERE session_id = ? AND sequence_id <= ?", session_id, last_id)
    tx.change("UPDATE sessions SET last_sequence_id = ? WHERE session_id = ?", last_id, session_id)
    return last_id


_EARLY = "SELECT sequence_id FROM early_messages WHERE session_id = ? ORDER BY sequence_id"

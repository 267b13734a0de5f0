"""Streams and frames in SQLite: the guarded append, the one start of a request, the pages of a replay.

The guard is part of the statement that moves the stream on: one UPDATE that finds its row only if the
session's epoch, the next frame id and the text offset are what the caller thinks and the stream is live. If
it changes no row nothing was written, and only then is it asked why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from seedance_server.journal.errors import (
    CursorAhead,
    IdempotencyMismatch,
    JournalFull,
    OutOfOrder,
    RequestInUse,
    StreamEnded,
    StreamExpired,
    StreamNotFound,
    StreamTruncated,
)
from seedance_server.journal.frame_check import check_frames
from seedance_server.journal.records import (
    FramePage,
    FrameRecord,
    NewStream,
    StoredStream,
    StreamRecord,
    StreamState,
    Submission,
)
from seedance_server.journal.retention import make_room_for_tenant, stored_size
from seedance_server.journal.session_rows import STREAM_COLUMNS, mark_processed, owned, stream_record
from seedance_server.journal.token_ids import pack_token_ids, unpack_token_ids
from seedance_server.journal.transaction import Transaction

__all__ = [
    "abandon",
    "append",
    "find_stream",
    "knows_request",
    "load_stream",
    "note_attempt",
    "read_frames",
    "submit",
]


def submit(tx: Transaction, session_id: str, epoch: int, stream: NewStream) -> Submission:
    """See `Journal.submit`."""
    tenant, last_id, stream_id = owned(tx, session_id, epoch)
    moved_from = None
    known = tx.row(
        "SELECT fingerprint, stream_key FROM requests WHERE tenant = ? AND idempotency_key = ?",
        tenant,
        stream.idempotency_key,
    )
    if known is not None:
        fingerprint, stream_key = known
        if fingerprint != stream.fingerprint:
            raise IdempotencyMismatch
        (owner,) = tx.row("SELECT session_id FROM streams WHERE stream_key = ?", stream_key)
        if owner != session_id:
            _move(tx, stream_key, owner, session_id, stream_id)
            moved_from = owner
    else:
        stream_key = _start(tx, session_id, tenant, stream_id, stream)
    row = tx.row(f"SELECT {STREAM_COLUMNS} FROM streams WHERE stream_key = ?", stream_key)  # noqa: S608
    return Submission(
        stream=stream_record(row),
        replayed=known is not None,
        last_sequence_id=mark_processed(tx, session_id, last_id, stream.sequence_id),
        moved_from=moved_from,
    )


def _move(tx: Transaction, stream_key: int, owner: str, session_id: str, stream_id: int) -> None:
    """Gives a stream to another session; who wrote it until now is fenced, with all of its session."""
    released = tx.row("SELECT released_ms FROM sessions WHERE session_id = ?", owner)
    if released == (None,):
        raise RequestInUse
    tx.change("UPDATE sessions SET epoch = epoch + 1 WHERE session_id = ?", owner)
    tx.change(
        "UPDATE streams SET session_id = ?, stream_id = ? WHERE stream_key = ?",
        session_id,
        stream_id,
        stream_key,
    )
    tx.change("UPDATE sessions SET next_stream_id = ? WHERE session_id = ?", stream_id + 1, session_id)


def _start(tx: Transaction, session_id: str, tenant: str, stream_id: int, stream: NewStream) -> int:
    if tx.is_nearly_full():
        raise JournalFull(new_work=True)
    prompt = pack_token_ids(stream.prompt_ids)
    size = stored_size(len(stream.request), len(prompt))
    make_room_for_tenant(tx, tenant, size)
    stream_key: int
    (stream_key,) = tx.row(
        "INSERT INTO streams(session_id, stream_id, tenant, state, stored_bytes, created_ms) "
        "VALUES(?, ?, ?, 'live', ?, ?) RETURNING stream_key",
        session_id,
        stream_id,
        tenant,
        size,
        tx.now_ms,
    )
    tx.change(
        "INSERT INTO stream_inputs VALUES(?, ?, ?, ?, ?)",
        stream_key,
        stream.request,
        stream.model_fingerprint,
        prompt,
        stream.seed,
    )
    tx.change(
        "INSERT INTO requests VALUES(?, ?, ?, ?, ?)",
        tenant,
        stream.idempotency_key,
        stream.fingerprint,
        stream_key,
        tx.now_ms,
    )
    tx.change("UPDATE sessions SET next_stream_id = ? WHERE session_id = ?", stream_id + 1, session_id)
    return stream_key


_APPEND = """
UPDATE streams SET
    next_frame_id = next_frame_id + ?1, text_bytes = text_bytes + ?2, stored_bytes = stored_bytes + ?3
WHERE session_id = ?4 AND stream_id = ?5 AND next_frame_id = ?6 AND text_bytes = ?7 AND state = 'live'
    AND (SELECT epoch FROM sessions WHERE session_id = ?4) = ?8
RETURNING stream_key
"""
_FINISH = "UPDATE streams SET state = 'finished', ended_ms = ?, finish = ? WHERE stream_key = ?"
"""Apart, since a statement that may change a column writes each index that has it anew, changed or not: that
was a seventh of the time of a commit."""
_INSERT = "INSERT INTO frames VALUES(?, ?, ?, ?, ?, ?, ?)"


def append(
    tx: Transaction,
    session_id: str,
    epoch: int,
    stream_id: int,
    frames: Sequence[FrameRecord],
    finish: str | None,
) -> int:
    """See `Journal.append`."""
    check_frames(frames, tx.limits)
    rows = []
    text_bytes = stored_bytes = 0
    for frame in frames:
        token_ids, payload = pack_token_ids(frame.token_ids), frame.payload
        rows.append((frame.id, frame.kind, frame.offset, frame.size, token_ids, payload))
        text_bytes += frame.size
        stored_bytes += stored_size(len(payload), len(token_ids))
    first = frames[0]
    row = tx.row(
        _APPEND,
        len(frames),
        text_bytes,
        stored_bytes,
        session_id,
        stream_id,
        first.id,
        first.offset,
        epoch,
    )
    if row is None:
        record = _live(tx, session_id, epoch, stream_id)
        raise OutOfOrder(stream_id, record.next_frame_id, record.text_bytes)
    (stream_key,) = row
    execute = tx.db.execute
    for values in rows:
        execute(_INSERT, (stream_key, *values))
    if finish is not None:
        execute(_FINISH, (tx.now_ms, finish, stream_key))
    return tx.now_ms


def abandon(tx: Transaction, session_id: str, epoch: int, stream_id: int) -> None:
    """See `Journal.abandon`."""
    _live(tx, session_id, epoch, stream_id)
    tx.change(
        "UPDATE streams SET state = 'abandoned', ended_ms = ? WHERE session_id = ? AND stream_id = ?",
        tx.now_ms,
        session_id,
        stream_id,
    )


_ATTEMPT = """
INSERT INTO stream_attempts
SELECT stream_key, next_frame_id, 2 FROM streams WHERE session_id = ? AND stream_id = ?
ON CONFLICT(stream_key) DO UPDATE SET
    attempts = iif(next_frame_id = excluded.next_frame_id, attempts + 1, 2),
    next_frame_id = excluded.next_frame_id
RETURNING attempts
"""


def note_attempt(tx: Transaction, session_id: str, epoch: int, stream_id: int) -> int:
    """See `Journal.note_attempt`."""
    _live(tx, session_id, epoch, stream_id)
    attempts: int
    (attempts,) = tx.row(_ATTEMPT, session_id, stream_id)
    return attempts


def _live(tx: Transaction, session_id: str, epoch: int, stream_id: int) -> StreamRecord:
    """The record of a stream that its owner may write to, or the reason why not."""
    owned(tx, session_id, epoch)
    _, record = _find(tx.db, session_id, stream_id)
    if record.state is not StreamState.LIVE:
        raise StreamEnded(stream_id)
    return record


# ---- reading: on any connection


def _find(db: apsw.Connection, session_id: str, stream_id: int) -> tuple[int, StreamRecord]:
    row: Any = db.execute(
        f"SELECT {STREAM_COLUMNS}, stream_key FROM streams WHERE session_id = ? AND stream_id = ?",  # noqa: S608
        (session_id, stream_id),
    ).fetchone()
    if row is not None:
        return row[11], stream_record(row)
    next_id: Any = db.execute(
        "SELECT next_stream_id FROM sessions WHERE session_id = ?", (session_id,)
    ).fetchone()
    if next_id is not None and 1 <= stream_id < next_id[0]:
        raise StreamExpired(stream_id, 1, 0)  # so long ago that even its numbers are forgotten
    raise StreamNotFound(stream_id)


def find_stream(db: apsw.Connection, session_id: str, stream_id: int) -> StreamRecord:
    """See `Journal.find_stream`."""
    return _find(db, session_id, stream_id)[1]


def knows_request(db: apsw.Connection, tenant: str, idempotency_key: bytes) -> bool:
    """See `Journal.knows_request`."""
    query = "SELECT 1 FROM requests WHERE tenant = ? AND idempotency_key = ?"
    return db.execute(query, (tenant, idempotency_key)).fetchone() is not None


def _check_available(record: StreamRecord, frame_id: int) -> None:
    if record.state is StreamState.EXPIRED:
        raise StreamExpired(record.stream_id, record.first_available_id, record.last_id)
    if frame_id < record.first_available_id:
        raise StreamTruncated(record.stream_id, record.first_available_id, record.last_id)


def read_frames(
    db: apsw.Connection, session_id: str, stream_id: int, after_id: int, limit: int, page_bytes: int
) -> FramePage:
    """See `Journal.read_frames`."""
    with db:  # one snapshot for the record and its frames
        stream_key, record = _find(db, session_id, stream_id)
        _check_available(record, after_id + 1)
        if after_id > record.last_id:
            raise CursorAhead(stream_id, record.first_available_id, record.last_id)
        frames: list[FrameRecord] = []
        size = 0
        for row in db.execute(_FRAMES, (stream_key, after_id, limit)):
            frame = _frame_record(row)
            size += len(frame.payload)
            if frames and size > page_bytes:
                break
            frames.append(frame)
    return FramePage(record=record, frames=tuple(frames))


_FRAMES = """
SELECT frame_id, kind, text_offset, size, token_ids, payload FROM frames
WHERE stream_key = ? AND frame_id > ? ORDER BY frame_id LIMIT ?
"""


def _frame_record(row: Sequence[Any]) -> FrameRecord:
    return FrameRecord(
        id=row[0],
        kind=row[1],
        offset=row[2],
        size=row[3],
        token_ids=unpack_token_ids(row[4]),
        payload=row[5],
    )


def load_stream(db: apsw.Connection, session_id: str, stream_id: int) -> StoredStream:
    """See `Journal.load_stream`."""
    with db:
        stream_key, record = _find(db, session_id, stream_id)
        _check_available(record, 1)
        row: Any = db.execute(
            "SELECT request, model_fingerprint, prompt_ids, seed FROM stream_inputs WHERE stream_key = ?",
            (stream_key,),
        ).fetchone()
        ids: Any = db.execute(
            "SELECT token_ids FROM frames WHERE stream_key = ? ORDER BY frame_id", (stream_key,)
        )
        token_ids = unpack_token_ids(b"".join(piece for (piece,) in ids))
        noted: Any = db.execute(
            "SELECT attempts FROM stream_attempts WHERE stream_key = ? AND next_frame_id = ?",
            (stream_key, record.next_frame_id),
        ).get
    return StoredStream(
        record=record,
        request=row[0],
        model_fingerprint=row[1],
        prompt_ids=unpack_token_ids(row[2]),
        token_ids=token_ids,
        seed=row[3],
        attempts=noted or 0,
    )

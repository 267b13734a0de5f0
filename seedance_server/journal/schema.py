"""The SQLite file: its tables, how a connection to it is set up, and what is refused when it is opened.

Rows that change with every commit are small: what a takeover needs once (request, prompt) lies in a table of
its own, since SQLite writes a changed row whole. Frames are clustered by stream, so a replay reads pages in
order. `synchronous=FULL` is what makes a commit durable in WAL mode: with NORMAL a power loss takes
acknowledged commits along.

The file must not be opened by anything but SQLite in this process: closing any other descriptor of it would
drop SQLite's POSIX locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import apsw

from seedance_server.journal.errors import JournalUnusable
from seedance_server.journal.limits import JournalLimits

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "close_connection", "open_reader", "open_writer", "page_size"]

APPLICATION_ID = 0x53454544
"""Marks a SQLite file as ours: "SEED"."""
SCHEMA_VERSION = 3
"""Of the tables below. A file of an older version gets what it lacks, one of a version unknown is refused."""
_PAGE_BYTES = 1_024
"""Of a new file. A commit writes the last page of every stream that got a frame, whole: with SQLite's usual
4 KiB it writes three times as much and takes a fifth longer. A file that is there keeps its own."""
_WAL_KEPT_BYTES = 16_777_216
"""What the log may keep on disk after a checkpoint; one that grew in a burst gives the rest back."""

_TABLES = """
CREATE TABLE sessions(
    session_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    token_hash BLOB NOT NULL CHECK(length(token_hash) = 32),
    epoch INTEGER NOT NULL CHECK(epoch >= 1),
    last_sequence_id INTEGER NOT NULL DEFAULT 0,
    next_stream_id INTEGER NOT NULL DEFAULT 1,
    created_ms INTEGER NOT NULL,
    released_ms INTEGER  -- NULL while a client is attached
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_release ON sessions(released_ms) WHERE released_ms IS NOT NULL;

-- Client messages processed before an earlier one; they go when the gap closes.
CREATE TABLE early_messages(
    session_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    PRIMARY KEY(session_id, sequence_id)
) STRICT, WITHOUT ROWID;

-- Small, since it changes with every commit; outlives its session as the memory of an expired stream.
CREATE TABLE streams(
    stream_key INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    stream_id INTEGER NOT NULL CHECK(stream_id >= 1),
    tenant TEXT NOT NULL,
    state TEXT NOT NULL CHECK(state IN ('live', 'finished', 'abandoned', 'expired')),
    first_available_id INTEGER NOT NULL DEFAULT 1,
    next_frame_id INTEGER NOT NULL DEFAULT 1 CHECK(first_available_id BETWEEN 1 AND next_frame_id),
    text_bytes INTEGER NOT NULL DEFAULT 0,
    stored_bytes INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    ended_ms INTEGER CHECK((ended_ms IS NULL) = (state = 'live')),
    finish TEXT,
    UNIQUE(session_id, stream_id)
) STRICT;
CREATE INDEX streams_by_tenant ON streams(tenant) WHERE state <> 'expired';
CREATE INDEX streams_live ON streams(session_id) WHERE state = 'live';
CREATE INDEX streams_by_end ON streams(ended_ms) WHERE state IN ('finished', 'abandoned');

-- What a takeover needs, written once; goes with the stream's frames.
CREATE TABLE stream_inputs(
    stream_key INTEGER PRIMARY KEY,
    request BLOB NOT NULL,
    model_fingerprint BLOB NOT NULL,
    prompt_ids BLOB NOT NULL,
    seed INTEGER NOT NULL
) STRICT;

CREATE TABLE frames(
    stream_key INTEGER NOT NULL,
    frame_id INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    text_offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    token_ids BLOB NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY(stream_key, frame_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE requests(
    tenant TEXT NOT NULL,
    idempotency_key BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    stream_key INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY(tenant, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests(created_ms);
"""

_EVENT_TABLES = """
-- A batch of reported events. Without a payload it is the mark that it was there.
CREATE TABLE event_batches(
    event_key INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    batch_id INTEGER NOT NULL,
    received_ms INTEGER NOT NULL,
    size INTEGER NOT NULL,
    payload BLOB,
    UNIQUE(session_id, batch_id)
) STRICT;
CREATE INDEX event_batches_waiting ON event_batches(event_key) WHERE payload IS NOT NULL;
CREATE INDEX event_batches_taken ON event_batches(session_id) WHERE payload IS NULL;

-- The last batch that each sink has taken.
CREATE TABLE event_cursors(sink TEXT PRIMARY KEY, event_key INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE event_totals(tenant TEXT PRIMARY KEY, waiting_bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

_ATTEMPT_TABLE = """
-- How many processes have stood at a stream's next frame: a row for each stream that was gone on with.
CREATE TABLE stream_attempts(
    stream_key INTEGER PRIMARY KEY,
    next_frame_id INTEGER NOT NULL,
    attempts INTEGER NOT NULL
) STRICT;
"""
_MISSING: Mapping[object, str] = {
    0: _TABLES + _EVENT_TABLES + _ATTEMPT_TABLE,
    1: _EVENT_TABLES + _ATTEMPT_TABLE,
    2: _ATTEMPT_TABLE,
}
"""What a file of each older version lacks; a new one is of version 0."""


def open_writer(
    path: Path, limits: JournalLimits, *, vfs: str | None = None, synchronous: str = "FULL"
) -> apsw.Connection:
    """Opens the journal's file for the one writer; one that isn't there is made, for its owner alone to read.

    Args:
        path: The file; its directory exists.
        limits: Bounds.
        vfs: SQLite's way to the disk, None for its own.
        synchronous: For tests, to show that less than FULL loses commits.

    Raises:
        JournalUnusable: It is no journal, of another version, damaged, or the file system has no WAL.
    """
    with contextlib.suppress(OSError):  # SQLite says it better
        path.touch(0o600)  # opens none that is there; its log and index get the same
    try:
        db = apsw.Connection(str(path), vfs=vfs)
    except apsw.CantOpenError as error:
        raise JournalUnusable(path, f"it can't be opened ({error})") from error
    try:
        _set_up(db, path, limits, synchronous)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        close_connection(db)
        raise JournalUnusable(path, f"it is no SQLite file, or damaged ({error}); move it away") from error
    except apsw.ReadOnlyError as error:
        close_connection(db)
        raise JournalUnusable(path, "it may not be written") from error
    except BaseException:
        close_connection(db)
        raise
    return db


def close_connection(db: apsw.Connection) -> None:
    """Closes ``db``, whatever the disk says to it: what was acknowledged is durable without."""
    with contextlib.suppress(apsw.Error):
        db.close(force=True)


def _pragma(db: apsw.Connection, text: str) -> object:
    return db.execute(f"PRAGMA {text}").get


def _set_up(db: apsw.Connection, path: Path, limits: JournalLimits, synchronous: str) -> None:
    db.set_busy_timeout(round(limits.busy_timeout_s * 1e3))
    _check_kind(db, path)
    # Only from here on is anything written: a file of somebody else's stays as it was.
    _pragma(db, f"page_size = {_PAGE_BYTES}")
    if _pragma(db, "journal_mode = WAL") != "wal":
        raise JournalUnusable(path, "its file system offers no shared memory, as network file systems don't")
    _pragma(db, f"synchronous = {synchronous}")
    _pragma(db, "wal_autocheckpoint = 0")  # the writer does it after a commit, not as a part of it
    _pragma(db, f"journal_size_limit = {_WAL_KEPT_BYTES}")
    _pragma(db, "trusted_schema = OFF")
    version = _pragma(db, "user_version")
    if version != SCHEMA_VERSION:
        with db:
            db.execute(_MISSING[version])  # `_check_kind` knows the version
            _pragma(db, f"application_id = {APPLICATION_ID}")
            _pragma(db, f"user_version = {SCHEMA_VERSION}")
    elif _size(db) <= limits.check_bytes and (found := _pragma(db, "quick_check(1)")) != "ok":
        raise JournalUnusable(path, f"it is damaged ({found}); move it away")


def _check_kind(db: apsw.Connection, path: Path) -> None:
    version, kind = _pragma(db, "user_version"), _pragma(db, "application_id")
    empty = db.execute("SELECT count(*) = 0 FROM sqlite_schema").get
    if kind != APPLICATION_ID and not (empty and kind == 0 and version == 0):
        raise JournalUnusable(path, "it is a SQLite file of something else")
    if not empty and version not in range(1, SCHEMA_VERSION + 1):
        raise JournalUnusable(path, f"it has version {version}, this server writes {SCHEMA_VERSION}")


def _size(db: apsw.Connection) -> int:
    pages = _pragma(db, "page_count")
    assert isinstance(pages, int)  # noqa: S101 - what this pragma is
    return pages * page_size(db)


def page_size(db: apsw.Connection) -> int:
    """Bytes of a page of this file."""
    size = _pragma(db, "page_size")
    assert isinstance(size, int)  # noqa: S101 - what this pragma is
    return size


def open_reader(path: Path, limits: JournalLimits, *, vfs: str | None = None) -> apsw.Connection:
    """Opens the journal's file for reading only; `open_writer` has been there before.

    Raises:
        apsw.Error: As from SQLite.
    """
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    db.set_busy_timeout(round(limits.busy_timeout_s * 1e3))
    _pragma(db, "query_only = ON")
    return db

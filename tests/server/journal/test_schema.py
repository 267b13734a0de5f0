"""The file is ours or left alone, set up to be durable, and read in order instead of searched."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import apsw
import pytest
from attrs import evolve

from seedance_server.journal import schema, stream_rows
from seedance_server.journal.errors import JournalUnusable
from seedance_server.journal.schema import APPLICATION_ID, SCHEMA_VERSION, open_reader, open_writer, page_size
from tests.server.journal.journal_made import LIMITS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def test_writer_is_durable(path: Path):
    """WAL with FULL is what makes "committed" true; the marks make the file known."""
    db = open_writer(path, LIMITS)
    assert db.execute("PRAGMA journal_mode").get == "wal"
    assert db.execute("PRAGMA synchronous").get == 2
    assert db.execute("PRAGMA application_id").get == APPLICATION_ID
    assert db.execute("PRAGMA user_version").get == SCHEMA_VERSION
    db.close()
    open_writer(path, LIMITS).close()


def test_reader_cannot_write(path: Path):
    """Reading goes around the one writer, so it must not be able to."""
    open_writer(path, LIMITS).close()
    db = open_reader(path, LIMITS)
    with pytest.raises(apsw.ReadOnlyError):
        db.execute("DELETE FROM frames")
    db.close()


def test_text_file_is_left_alone(path: Path):
    """A wrong path is an error in one line, not somebody's data overwritten."""
    path.write_text("dear diary, " * 100)
    with pytest.raises(JournalUnusable, match="no SQLite file"):
        open_writer(path, LIMITS)
    assert path.read_text().startswith("dear diary")


def test_database_of_something_else_is_left_alone(path: Path):
    """Another program's tables aren't ours to add to."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks(url TEXT)")
    db.close()
    content = path.read_bytes()
    with pytest.raises(JournalUnusable, match="something else"):
        open_writer(path, LIMITS)
    assert path.read_bytes() == content


def test_other_version_is_refused(path: Path):
    """A newer server's journal isn't misread by an older one."""
    db = open_writer(path, LIMITS)
    db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(JournalUnusable, match="version 9"):
        open_writer(path, LIMITS)


def test_damaged_file_is_refused(path: Path):
    """Damage is found at the start, and not when somebody resumes; beyond the limit nothing is checked."""
    db = open_writer(path, LIMITS)
    db.execute("INSERT INTO sessions VALUES('s', 't', zeroblob(32), 1, 0, 1, 0, NULL)")
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sessions'").get
    size = page_size(db)
    db.close()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(content)
    with pytest.raises(JournalUnusable, match="damaged"):
        open_writer(path, LIMITS)
    open_writer(path, evolve(LIMITS, check_bytes=0)).close()


def test_file_is_its_owners_alone(path: Path):
    """It holds prompts and answers; so do its log and index."""
    umask = os.umask(0o022)
    try:
        db = open_writer(path, LIMITS)
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["journal.db", "journal.db-shm", "journal.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        db.close()
    finally:
        os.umask(umask)


def test_file_keeps_its_page_size(path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of a server that wrote larger pages is used as it is."""
    with monkeypatch.context() as then:
        then.setattr(schema, "_PAGE_BYTES", 4_096)
        open_writer(path, LIMITS).close()
    for file, expected in ((path, 4_096), (path.with_name("new.db"), 1_024)):
        db = open_writer(file, LIMITS)
        assert page_size(db) == expected
        db.close()


_OLDEST = """
SELECT stream_key FROM streams WHERE state IN ('finished', 'abandoned') AND ended_ms <= ?
ORDER BY ended_ms, stream_key LIMIT 1
"""
_LIVE = "SELECT DISTINCT session_id FROM streams WHERE state = 'live'"
_USED = "SELECT sum(stored_bytes) FROM streams WHERE tenant = ? AND state <> 'expired'"


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (stream_rows._APPEND, 8, "sqlite_autoindex_streams_1"),
        (stream_rows._FRAMES, 3, "PRIMARY KEY"),
        (_OLDEST, 1, "streams_by_end"),
        (_LIVE, 0, "streams_live"),
        (_USED, 1, "streams_by_tenant"),
    ],
    ids=["append", "frames", "oldest", "live", "used"],
)
def test_statement_uses_its_index(path: Path, statement: str, values: int, index: str):
    """What runs for every frame or sweep must not search a table that grows."""
    db = open_writer(path, LIMITS)
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * values)]
    db.close()
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN") and "INDEX" not in step for step in plan), plan


def test_append_writes_no_index(path: Path):
    """A statement that may change an indexed column writes that index for each frame of each stream."""
    db = open_writer(path, LIMITS)
    operations = {row[1] for row in db.execute(f"EXPLAIN {stream_rows._APPEND}", (1,) * 8)}
    db.close()
    assert "Insert" in operations
    assert not {"IdxInsert", "IdxDelete"} & operations


_EVENTS = "DROP TABLE event_batches; DROP TABLE event_cursors; DROP TABLE event_totals;"


@pytest.mark.parametrize(("version", "lacks"), [(1, _EVENTS), (2, "")])
def test_file_of_an_older_version_gets_what_it_lacks(path: Path, version: int, lacks: str):
    """An update keeps every stream that can be resumed."""
    db = open_writer(path, LIMITS)
    db.execute(
        f"{lacks} DROP TABLE stream_attempts; PRAGMA user_version = {version};"
        "INSERT INTO sessions(session_id, tenant, token_hash, epoch, created_ms) "
        "VALUES('s', 'acme', zeroblob(32), 1, 0)"
    )
    db.close()
    db = open_writer(path, LIMITS)
    assert db.execute("PRAGMA user_version").get == SCHEMA_VERSION
    assert db.execute("SELECT count(*) FROM event_batches").get == 0
    assert db.execute("SELECT count(*) FROM stream_attempts").get == 0
    assert db.execute("SELECT count(*) FROM sessions").get == 1
    db.close()

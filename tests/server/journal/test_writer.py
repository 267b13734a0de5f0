"""The writer's own decisions: what a refusal takes back, what a failure fences, when the log is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from attrs import evolve

from seedance_server.journal import session_rows, stream_rows
from seedance_server.journal.errors import Fenced, JournalOverloaded, JournalUnusable, StreamNotFound
from seedance_server.journal.operation import Operation
from seedance_server.journal.schema import open_writer
from seedance_server.journal.transaction import Transaction
from seedance_server.journal.writer import FileSystem, StorageFailed, Writer
from tests.server.journal.faulty_vfs import FaultyVfs, Step, io_error
from tests.server.journal.journal_made import LIMITS, frames_from, new_session, new_stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path, evolve(LIMITS, busy_timeout_s=0.01, checkpoint_bytes=60 * 1_024), FileSystem())
    writer.open(0)
    writer.commit([Operation(lambda tx: session_rows.create_session(tx, new_session()))], 0)
    writer.commit([Operation(lambda tx: stream_rows.submit(tx, "s", 1, new_stream()))], 0)
    yield writer
    writer.close()


def _count(path: Path) -> int:
    db = apsw.Connection(str(path))
    count = db.execute("SELECT count(*) FROM early_messages").get
    db.close()
    return count


_ADD = "INSERT INTO early_messages SELECT 'whole', 1 + count(*) FROM early_messages RETURNING sequence_id"


def test_refusal_takes_back_what_its_operation_did(path: Path, writer: Writer):
    """A half-done operation leaves no row in the commit of the others."""

    def half(tx: Transaction) -> None:
        tx.change("INSERT INTO early_messages VALUES('half', 1)")
        raise StreamNotFound(1)

    def whole(tx: Transaction) -> int:
        return tx.row(_ADD)[0]

    outcomes = writer.commit([Operation(whole), Operation(half), Operation(whole), Operation(half)], 1)
    assert [outcome.value for outcome in outcomes] == [1, None, 2, None]
    assert [type(outcome.error) for outcome in outcomes[1::2]] == [StreamNotFound, StreamNotFound]
    assert _count(path) == 2


def test_lock_of_another_process_is_waited_for_and_then_told(path: Path, writer: Writer):
    """A shell that holds the file makes operations fail, not the journal."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    (outcome,) = writer.commit([Operation(lambda tx: None)], 1)
    assert isinstance(outcome.error, JournalOverloaded)
    other.close()
    (outcome,) = writer.commit([Operation(lambda tx: "done")], 1)
    assert outcome.value == "done"


def test_failure_fences_the_sessions_of_its_commit(path: Path):
    """After a failed flush nobody goes on from memory: the epoch that failed writes nothing any more."""
    failing = [False]

    def fail(number: int, step: Step) -> None:
        if failing[0] and step.kind == "sync":
            raise io_error(apsw.SQLITE_IOERR_FSYNC)

    with FaultyVfs(before=fail) as vfs:
        writer = Writer(path, LIMITS, FileSystem(vfs=vfs.name))
        writer.open(0)
        for name in "st":
            writer.commit(
                [Operation(lambda tx, name=name: session_rows.create_session(tx, new_session(name)))], 0
            )
        failing[0] = True
        with pytest.raises(StorageFailed) as caught:
            writer.commit([Operation(lambda tx: session_rows.record_message(tx, "s", 1, 1), "s")], 1)
        assert caught.value.unknown
        with pytest.raises(StorageFailed):
            writer.reopen(2)
        failing[0] = False
        writer.reopen(3)
        outcomes = writer.commit(
            [Operation(lambda tx, name=name: session_rows.record_message(tx, name, 1, 1)) for name in "st"], 4
        )
        writer.close()
    assert isinstance(outcomes[0].error, Fenced)
    assert outcomes[1].error is None


def test_log_is_moved_when_it_has_grown(path: Path, writer: Writer):
    """Between two commits, so that none of them waits for it."""
    assert not writer.wants_checkpoint
    frames = frames_from(1, 0, *[4_000] * 20)
    writer.commit([Operation(lambda tx: stream_rows.append(tx, "s", 1, 1, frames, None))], 1)
    assert writer.wants_checkpoint
    before = path.stat().st_size
    writer.checkpoint()
    assert path.stat().st_size > before
    assert not writer.wants_checkpoint


def test_room_is_made_from_ballast_and_oldest_streams(tmp_path: Path, path: Path):
    """First what is carried for that purpose, then what ended first, then there is nothing."""
    writer = Writer(path, evolve(LIMITS, ballast_bytes=8_192), FileSystem(free_bytes=lambda _: 10**9))
    writer.open(0)
    ballast = tmp_path / "journal.db.ballast"
    assert ballast.stat().st_size == 8_192
    assert writer.make_room(1)
    assert not ballast.exists()
    assert not writer.make_room(1)
    writer.restore_ballast()
    assert ballast.exists()
    writer.close()


def test_failure_at_the_start_is_one_line(path: Path):
    """A disk that fails while the journal is opened ends the start like a wrong path."""
    db = open_writer(path, LIMITS)
    session_rows.create_session(Transaction(db, 0, LIMITS, lambda: False), new_session())
    db.close()

    def fail(number: int, step: Step) -> None:
        if step.kind == "write":
            vfs.before = lambda number, step: None
            raise io_error(apsw.SQLITE_IOERR_WRITE)

    with FaultyVfs(before=fail) as vfs, pytest.raises(JournalUnusable, match="storage failed"):
        Writer(path, LIMITS, FileSystem(vfs=vfs.name)).open(0)

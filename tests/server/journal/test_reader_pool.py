"""Readers: as many as told, reused, and thrown away when the storage failed."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest
import trio
from attrs import evolve

from seedance_server.journal.errors import JournalFailed, StreamNotFound
from seedance_server.journal.reader_pool import ReaderPool
from seedance_server.journal.schema import open_writer
from tests.server.journal.journal_made import LIMITS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    open_writer(path, LIMITS).close()
    return path


async def test_connections_are_reused_and_bounded(path: Path):
    """A slow disk blocks as many threads as there are readers, and no more."""
    pool = ReaderPool(path, evolve(LIMITS, readers=2), None)
    seen: set[int] = set()
    running, most, lock = 0, 0, threading.Lock()

    def query(db: apsw.Connection) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            seen.add(id(db))
        db.execute("SELECT count(*) FROM frames").fetchall()
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(pool.run, query)
    assert most <= 2
    assert len(seen) <= 2
    pool.close()


async def test_refusal_keeps_the_connection_and_failure_does_not(path: Path):
    """An answer about a row is an answer; a connection that failed isn't trusted again."""
    pool = ReaderPool(path, LIMITS, None)
    connections = []

    def refuse(db: apsw.Connection) -> None:
        connections.append(db)
        raise StreamNotFound(1)

    def fail(db: apsw.Connection) -> None:
        connections.append(db)
        raise apsw.IOError("injected")

    with pytest.raises(StreamNotFound):
        await pool.run(refuse)
    with pytest.raises(JournalFailed) as caught:
        await pool.run(fail)
    assert not caught.value.unknown
    with pytest.raises(StreamNotFound):
        await pool.run(refuse)
    assert connections[0] is connections[1] is not connections[2]
    pool.close()


async def test_file_that_is_not_there_is_a_failure(path: Path):
    """A reader that can't be opened says so like one that fails."""
    with pytest.raises(JournalFailed):
        await ReaderPool(path.with_name("gone.db"), LIMITS, None).run(lambda db: None)

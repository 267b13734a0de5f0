"""Reported events in SQLite, beyond what every journal does."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from seedance_server.journal import event_rows
from seedance_server.journal.errors import JournalFull
from seedance_server.journal.schema import open_writer
from seedance_server.journal.session_rows import create_session
from seedance_server.journal.transaction import Transaction
from tests.server.journal.journal_made import LIMITS, new_batch, new_session


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    db = open_writer(tmp_path / "journal.db", LIMITS)
    yield db
    db.close()


def test_events_are_new_work_when_the_disk_is_nearly_full(db: apsw.Connection):
    """Live streams need the rest; events that are known need no room."""
    full = False
    tx = Transaction(db, 1, LIMITS, lambda: full)
    create_session(tx, new_session())
    event_rows.take_events(tx, "s", 1, new_batch(1))
    full = True
    assert event_rows.take_events(tx, "s", 1, new_batch(1)) == 1
    with pytest.raises(JournalFull) as caught:
        event_rows.take_events(tx, "s", 1, new_batch(2))
    assert caught.value.new_work


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT event_key FROM event_batches WHERE event_key > 5 AND payload IS NOT NULL ORDER BY event_key",
        "SELECT 1 FROM event_batches WHERE session_id = 's' AND batch_id = 3",
    ],
)
def test_queries_of_events_search_and_do_not_scan(db: apsw.Connection, sql: str):
    """A sink that is up to date costs nothing, however many marks there are."""
    plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}"))
    assert "SEARCH" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan

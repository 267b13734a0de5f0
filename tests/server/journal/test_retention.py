"""Forgetting in SQLite: a few rows at a time, with the mark moved along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from seedance_server.journal import retention, session_rows, stream_rows
from seedance_server.journal.errors import StreamExpired, StreamTruncated
from seedance_server.journal.schema import open_writer
from seedance_server.journal.transaction import Transaction
from tests.server.journal.journal_made import LIMITS, frames_from, new_session, new_stream


@pytest.fixture
def transaction(tmp_path: Path) -> Iterator[Transaction]:
    db = open_writer(tmp_path / "journal.db", LIMITS)
    tx = Transaction(db, 0, evolve(LIMITS, sweep_rows=4), lambda: False)
    session_rows.create_session(tx, new_session())
    stream_rows.submit(tx, "s", 1, new_stream())
    stream_rows.append(tx, "s", 1, 1, frames_from(1, 0, *[5] * 10), "stop")
    yield evolve(tx, now_ms=round(LIMITS.retention_s * 1e3))
    db.close()


def test_large_stream_goes_in_portions(transaction: Transaction):
    """Live streams wait for one portion at most, and a reader between two is told where the rest begins."""
    portions = [retention.sweep_step(transaction)]
    with pytest.raises(StreamTruncated) as caught:
        stream_rows.read_frames(transaction.db, "s", 1, 0, 10, 10**6)
    assert (caught.value.first_available_id, caught.value.last_id) == (5, 10)
    assert not isinstance(caught.value, StreamExpired)
    with pytest.raises(StreamTruncated):
        stream_rows.load_stream(transaction.db, "s", 1)
    page = stream_rows.read_frames(transaction.db, "s", 1, 4, 10, 10**6)
    assert [frame.id for frame in page.frames] == [5, 6, 7, 8, 9, 10]
    while portion := retention.sweep_step(transaction):
        portions.append(portion)
    assert [portion.frames for portion in portions] == [4, 4, 2]
    assert [portion.expired for portion in portions] == [0, 0, 1]


def test_stored_bytes_are_what_is_stored(transaction: Transaction):
    """The quota counts rows that are there: trimmed to nothing but the request, that is what is left."""
    (before,) = transaction.row("SELECT stored_bytes FROM streams")
    retention.sweep_step(transaction)
    (after,) = transaction.row("SELECT stored_bytes FROM streams")
    gone = frames_from(1, 0, *[5] * 4)
    assert before - after == sum(retention.stored_size(len(frame.payload), 8) for frame in gone)


def test_full_disk_forgets_the_oldest_before_its_time(transaction: Transaction):
    """When room is needed at once, age doesn't matter; live streams still do."""
    early = evolve(transaction, now_ms=1)
    stream_rows.submit(early, "s", 1, new_stream(2))
    while retention.make_room(early):
        pass
    states = early.rows("SELECT state FROM streams ORDER BY stream_id")
    assert states == [("expired",), ("live",)]

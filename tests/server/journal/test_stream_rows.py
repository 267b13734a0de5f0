"""Streams in SQLite, beside the conformance suite: what changes with every commit stays small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance_server.journal import session_rows, stream_rows
from seedance_server.journal.schema import open_reader, open_writer
from seedance_server.journal.transaction import Transaction
from tests.server.journal.journal_made import LIMITS, frames_from, new_session, new_stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def transaction(path: Path) -> Iterator[Transaction]:
    db = open_writer(path, LIMITS)
    tx = Transaction(db, 0, LIMITS, lambda: False)
    session_rows.create_session(tx, new_session())
    yield tx
    db.close()


def test_append_does_not_write_the_prompt_again(transaction: Transaction):
    """A frame costs a few pages of log, however long the prompt is that led to it."""
    stream_rows.submit(transaction, "s", 1, new_stream(prompt_ids=tuple(range(50_000))))
    pages = []
    transaction.db.set_wal_hook(lambda db, name, count: pages.append(count) or 0)
    for number in range(4):
        stream_rows.append(transaction, "s", 1, 1, frames_from(1 + number, number, 1), None)
    assert pages[-1] - pages[-3] <= 2 * 4


def test_page_is_one_snapshot(path: Path, transaction: Transaction):
    """A record and its frames are of one moment, and the connection holds nothing when it has them."""
    stream_rows.submit(transaction, "s", 1, new_stream())
    db = open_reader(path, LIMITS)
    for number in range(3):
        stream_rows.append(transaction, "s", 1, 1, frames_from(1 + number, number, 1), None)
        page = stream_rows.read_frames(db, "s", 1, 0, 100, 10**6)
        assert len(page.frames) == page.record.last_id == number + 1
        assert db.txn_state() == 0
    db.close()

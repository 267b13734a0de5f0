"""A transaction reads rows and counts changes."""

from __future__ import annotations

import apsw

from seedance_server.journal.transaction import Transaction
from tests.server.journal.journal_made import LIMITS


def test_transaction_reads_and_changes():
    """Rows come as tuples, changes as how many, ages as moments."""
    db = apsw.Connection(":memory:")
    transaction = Transaction(db, 10_000, LIMITS, lambda: False)
    db.execute("CREATE TABLE t(a, b)")
    assert transaction.change("INSERT INTO t VALUES(?, ?), (3, 4)", 1, 2) == 2
    assert transaction.row("SELECT * FROM t WHERE a = ?", 1) == (1, 2)
    assert transaction.row("SELECT * FROM t WHERE a = ?", 9) is None
    assert transaction.rows("SELECT a, b FROM t ORDER BY a") == [(1, 2), (3, 4)]
    assert transaction.before(2.5) == 7_500
    db.close()

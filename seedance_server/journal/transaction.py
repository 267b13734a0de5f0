"""What an operation is given while a commit is open, and how its rows are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
from attrs import frozen

from seedance_server.journal.limits import JournalLimits

__all__ = ["Transaction"]


@frozen
class Transaction:
    """An open transaction of the one writer.

    Attributes:
        db: The connection.
        now_ms: The journal's clock.
        limits: Bounds.
        is_nearly_full: Whether new work is to be refused since the disk has little room.
    """

    db: apsw.Connection
    now_ms: int
    limits: JournalLimits
    is_nearly_full: Callable[[], bool]

    def row(self, sql: str, *values: apsw.SQLiteValue) -> Any:
        """The first row as a tuple, or None."""
        return self.db.execute(sql, values).fetchone()

    def rows(self, sql: str, *values: apsw.SQLiteValue) -> list[Any]:
        """All rows."""
        return list(self.db.execute(sql, values))

    def change(self, sql: str, *values: apsw.SQLiteValue) -> int:
        """Runs a statement without rows; returns how many rows it changed."""
        self.db.execute(sql, values)
        return self.db.changes()

    def before(self, age_s: float) -> int:
        """The moment ``age_s`` seconds ago, in milliseconds."""
        return self.now_ms - round(age_s * 1e3)

"""One thing to write, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from seedance_server.journal.transaction import Transaction

__all__ = ["Batch", "Operation", "Outcome"]


@frozen
class Operation:
    """Something to do inside a commit, alone or with others.

    Attributes:
        run: Does it; a `JournalRefusal` from it takes back what it did, and that alone.
        session_id: Whose it is, to be fenced if the storage fails; None for housekeeping.
        rows: What it counts against the limits of a commit.
        size: The same in bytes.
    """

    run: Callable[[Transaction], Any]
    session_id: str | None = None
    rows: int = 1
    size: int = 0


@frozen
class Outcome:
    """What an operation returned or raised."""

    value: Any = None
    error: Exception | None = None


Batch = list[Operation]

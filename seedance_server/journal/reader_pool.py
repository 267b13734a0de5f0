"""Read-only connections to the SQLite file, each used by one thread at a time.

A page is read in a snapshot of its own and at once, so no reader holds the log back for long, and none of
them can write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import trio

from seedance_server.journal.errors import JournalFailed
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.schema import close_connection, open_reader

__all__ = ["ReaderPool"]

T = TypeVar("T")


class ReaderPool:
    """Runs queries off the event loop.

    Args:
        path: The file.
        limits: Bounds.
        vfs: SQLite's way to the disk, None for its own.
    """

    def __init__(self, path: Path, limits: JournalLimits, vfs: str | None) -> None:
        self._path = path
        self._limits = limits
        self._vfs = vfs
        self._limiter = trio.CapacityLimiter(limits.readers)
        self._idle: list[apsw.Connection] = []
        self._is_closed = False

    async def run(self, query: Callable[[apsw.Connection], T]) -> T:
        """Runs ``query`` on a connection of its own for that long.

        Raises:
            JournalFailed: The storage failed; the connection is gone, the next one may do better.
            JournalRefusal: As from ``query``.

        A cancellation takes effect while it waits for a connection; a query is short.
        """
        return await trio.to_thread.run_sync(self._run, query, limiter=self._limiter)

    def _run(self, query: Callable[[apsw.Connection], T]) -> T:
        db = None
        try:
            # Appending and popping are atomic, and the limiter keeps the list as short as itself.
            db = self._idle.pop() if self._idle else open_reader(self._path, self._limits, vfs=self._vfs)
            result = query(db)
        except apsw.Error as error:
            if db is not None:
                close_connection(db)
            raise JournalFailed(f"{type(error).__name__}: {error}", unknown=False) from error
        except BaseException:
            if db is not None:
                self._give_back(db)
            raise
        self._give_back(db)
        return result

    def _give_back(self, db: apsw.Connection) -> None:
        self._idle.append(db)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Closes what isn't in use now, and the rest when it has been used."""
        self._is_closed = True
        while self._idle:
            close_connection(self._idle.pop())

"""The one writer of the SQLite file: a batch of operations becomes a commit.

Everything here runs on the writer's thread. An operation that is refused leaves no trace, and the others of
its commit go on: hardly ever is one, so a batch runs bare first, and only if one was it runs once more with a
savepoint around each. What a storage error means is decided here:

- full: nothing was written. Room is made (ballast, then the oldest ended streams) and the caller tries again.
- anything else of SQLite's: if it came from COMMIT the outcome is unknown, since a flush that failed may have
  reached the disk or not, and asking again proves nothing: the kernel reports it once and calls the pages
  clean. So the connection is thrown away and every session that was touched is fenced, on a new connection
  and after a checkpoint that writes the log's pages anew. What is read from then on is durable.

It must not know trio or who waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import apsw
import structlog
from attrs import frozen

from seedance_server.journal.ballast import Ballast
from seedance_server.journal.errors import JournalOverloaded, JournalRefusal, JournalUnusable
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.operation import Batch, Outcome
from seedance_server.journal.records import Space
from seedance_server.journal.retention import make_room
from seedance_server.journal.schema import close_connection, open_writer, page_size
from seedance_server.journal.session_rows import release_all
from seedance_server.journal.transaction import Transaction

__all__ = ["DiskFull", "FileSystem", "StorageFailed", "Writer"]

_log = structlog.get_logger(__name__)

_REFUSALS = (JournalRefusal, apsw.ConstraintError, ArithmeticError, TypeError, ValueError)
"""Refused, or a bug of the caller: its own business, the others' rows are sound."""


class DiskFull(Exception):  # noqa: N818 - between the writer and its journal; callers see JournalFull
    """The commit found no room; nothing of it was written."""


class StorageFailed(Exception):  # noqa: N818 - as above; callers see JournalFailed
    """The storage failed in the middle of a commit; the connection is closed.

    Attributes:
        reason: What it said.
        unknown: Whether the commit may have been written all the same.
    """

    def __init__(self, reason: str, *, unknown: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unknown = unknown


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _size_of(path: Path) -> int:
    """The file and its log; what isn't there has none."""
    size = 0
    for name in (path.name, f"{path.name}-wal"):
        with contextlib.suppress(FileNotFoundError):
            size += path.with_name(name).stat().st_size
    return size


@frozen(kw_only=True)
class FileSystem:
    """The writer's ways to the disk.

    Attributes:
        vfs: SQLite's, None for its own.
        free_bytes: Room left on the disk of a directory.
        synchronous: SQLite's; for tests, less than FULL loses commits.
    """

    vfs: str | None = None
    free_bytes: Callable[[Path], int] = _free_bytes
    synchronous: str = "FULL"


class Writer:
    """Owns the writing connection.

    Args:
        path: The file.
        limits: Bounds.
        files: Ways to the disk.

    Attributes:
        space: The last look at the disk; replaced whole, so that any thread may read it.
    """

    def __init__(self, path: Path, limits: JournalLimits, files: FileSystem) -> None:
        self._path = path
        self._limits = limits
        self._files = files
        self._ballast = Ballast(path.with_name(f"{path.name}.ballast"), limits.ballast_bytes)
        self._db: apsw.Connection | None = None
        self._checked_ms: int | None = None
        self.space = Space()
        self._to_fence: set[str] = set()
        self._log_bytes = 0
        self._page_bytes = 0

    def _connect(self) -> apsw.Connection:
        db = open_writer(self._path, self._limits, vfs=self._files.vfs, synchronous=self._files.synchronous)
        self._page_bytes = page_size(db)
        db.set_wal_hook(self._note_log)
        return db

    def _note_log(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._log_bytes = pages * self._page_bytes
        return apsw.SQLITE_OK

    def open(self, now_ms: int) -> None:
        """Opens the file as a process starts: every session is without its client.

        Raises:
            JournalUnusable: It can't be.
        """
        try:
            self._db = self._connect()
            with self._db:
                release_all(self._transaction(now_ms))
        except (apsw.Error, OSError) as error:
            self.close()
            raise JournalUnusable(self._path, f"the storage failed ({error})") from error
        self._ballast.load()
        self.look_at_space(now_ms)

    def close(self) -> None:
        """Closes the file; nothing if it isn't open."""
        db, self._db = self._db, None
        if db is not None:
            close_connection(db)

    def _transaction(self, now_ms: int) -> Transaction:
        assert self._db is not None, "used while closed"  # noqa: S101
        return Transaction(self._db, now_ms, self._limits, lambda: self._is_nearly_full(now_ms))

    def _is_nearly_full(self, now_ms: int) -> bool:
        self.look_at_space(now_ms)
        return self.space.free_bytes < self._limits.soft_free_bytes

    def look_at_space(self, now_ms: int) -> None:
        """Looks how much room there is, unless the last look is good enough; says when it gets scarce."""
        if self._checked_ms is not None and now_ms - self._checked_ms < self._limits.free_check_s * 1e3:
            return
        self._checked_ms = now_ms
        least_bytes = self._limits.soft_free_bytes
        was_low = self.space.free_bytes < least_bytes
        free_bytes = self._files.free_bytes(self._path.parent)
        self.space = Space(file_bytes=_size_of(self._path), free_bytes=free_bytes)
        if free_bytes < least_bytes and not was_low:
            _log.warning(
                "journal's disk is nearly full: new requests are refused",
                free_bytes=free_bytes,
                needed_bytes=least_bytes,
            )
        elif was_low and free_bytes >= least_bytes:
            _log.info("journal's disk has room again", free_bytes=free_bytes)

    def commit(self, batch: Batch, now_ms: int) -> list[Outcome]:
        """Runs the operations of ``batch`` in order and commits them together.

        Returns:
            What became of each, durable.

        Raises:
            DiskFull: No room.
            StorageFailed: See the module's docstring; `reopen` comes next.
        """
        if self._db is None:
            raise StorageFailed("the file is closed", unknown=False)
        committing = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            outcomes = self._run(batch, now_ms)
            committing = True
            self._db.execute("COMMIT")
        except apsw.FullError as error:
            self._roll_back()
            raise DiskFull from error
        except apsw.BusyError:
            self._roll_back()  # another process reads or copies the file; nothing is wrong with it
            return [Outcome(error=JournalOverloaded(self._limits.busy_timeout_s)) for _ in batch]
        except Exception as error:
            self._to_fence |= {operation.session_id for operation in batch if operation.session_id}
            self.close()
            raise StorageFailed(f"{type(error).__name__}: {error}", unknown=committing) from error
        return outcomes

    def _run(self, batch: Batch, now_ms: int) -> list[Outcome]:
        transaction = self._transaction(now_ms)
        db = transaction.db
        try:
            return [Outcome(operation.run(transaction)) for operation in batch]
        except _REFUSALS:
            db.execute("ROLLBACK")
            db.execute("BEGIN IMMEDIATE")
        outcomes = []
        for operation in batch:
            db.execute("SAVEPOINT operation")
            try:
                outcomes.append(Outcome(operation.run(transaction)))
            except _REFUSALS as error:
                db.execute("ROLLBACK TO operation")
                outcomes.append(Outcome(error=error))
            db.execute("RELEASE operation")
        return outcomes

    def _roll_back(self) -> None:
        assert self._db is not None  # noqa: S101 - within a commit
        try:
            if self._db.in_transaction:  # a full disk may have ended it
                self._db.execute("ROLLBACK")
        except apsw.Error as error:
            self.close()
            raise StorageFailed(f"{type(error).__name__}: {error}", unknown=False) from error

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the log has grown enough to be moved into the file."""
        return self._log_bytes >= self._limits.checkpoint_bytes

    def checkpoint(self) -> None:
        """Moves the log into the file. On its own, so that no commit waits for it that is done already.

        Raises:
            StorageFailed: As in `commit`.
        """
        self._log_bytes = 0
        if self._db is None:
            return
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.FullError, apsw.BusyError):
            return  # the log holds it all the same; the next commits ask again
        except apsw.Error as error:
            self.close()
            raise StorageFailed(f"{type(error).__name__}: {error}", unknown=False) from error

    def make_room(self, now_ms: int) -> bool:
        """Gives up the ballast and forgets a portion of what ended first; True if that was something.

        Raises:
            StorageFailed: As in `commit`.
        """
        freed = self._ballast.is_aboard
        self._ballast.drop()
        try:
            freed |= self._forget_oldest(now_ms)
            self._truncate_log()
        except apsw.Error as error:
            self.close()
            raise StorageFailed(f"{type(error).__name__}: {error}", unknown=False) from error
        return freed

    def _truncate_log(self) -> None:
        assert self._db is not None  # noqa: S101 - a full disk doesn't close it
        with contextlib.suppress(apsw.FullError, apsw.BusyError):
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _forget_oldest(self, now_ms: int) -> bool:
        assert self._db is not None  # noqa: S101
        with contextlib.suppress(apsw.FullError, apsw.BusyError), self._db:
            return bool(make_room(self._transaction(now_ms)))
        return False

    def restore_ballast(self) -> None:
        """Takes the ballast up again once there is room for it and for new work."""
        spare = self._limits.soft_free_bytes + self._limits.ballast_bytes
        if not self._ballast.is_aboard and self._files.free_bytes(self._path.parent) >= spare:
            self._ballast.load()

    def reopen(self, now_ms: int) -> None:
        """Opens the file again after `StorageFailed` and fences every session that was touched.

        Raises:
            StorageFailed: It failed again; safe to repeat.
        """
        self.close()
        try:
            self._db = self._connect()
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            with self._db:
                transaction = self._transaction(now_ms)
                for session_id in sorted(self._to_fence):
                    transaction.change(
                        "UPDATE sessions SET epoch = epoch + 1 WHERE session_id = ?", session_id
                    )
        except (apsw.Error, JournalUnusable, OSError) as error:
            self.close()
            raise StorageFailed(f"{type(error).__name__}: {error}", unknown=False) from error
        self._to_fence.clear()

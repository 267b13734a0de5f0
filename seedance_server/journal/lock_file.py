"""One process owns a journal: a lock on a file beside it, which the kernel takes back when the process ends.

SQLite alone would let two servers share the file without damage, but each would take the other's sessions
over. The lock lies on a file of its own, never deleted: on the journal itself it would meet SQLite's locks,
and a deleted file could be locked twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from seedance_server.journal.errors import JournalInUse, JournalUnusable

__all__ = ["LockFile"]

_PID_BYTES = 32


class LockFile:
    """Ownership of a journal, from `acquire` to `release` or the end of the process.

    Args:
        journal: The journal's file; the lock is beside it, under its name and ``.lock``.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock, without waiting.

        Raises:
            JournalInUse: Another process, or another journal of this one, has it.
            JournalUnusable: The lock file can't be written.
        """
        assert self._descriptor is None, "acquired twice"  # noqa: S101
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnusable(self._journal, f"its lock {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, _PID_BYTES).strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise JournalUnusable(self._journal, f"its lock {self._path}: {error.strerror}") from error
            raise JournalInUse(self._journal, int(owner) if owner.isdigit() else None) from None
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the number is a courtesy: on a full disk the lock holds without
            os.pwrite(descriptor, f"{os.getpid():<{_PID_BYTES}}".encode(), 0)

    def release(self) -> None:
        """Gives the lock back; nothing if it isn't held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

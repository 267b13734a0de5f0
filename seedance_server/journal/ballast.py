"""A file that takes up room, to be given up when the disk is full.

Deleting rows writes too, to SQLite's log. Without something to throw overboard a full disk could not even be
tidied up.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Ballast"]


class Ballast:
    """Room that can be given up.

    Args:
        path: The file.
        size: Its bytes; 0 for none.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    @property
    def is_aboard(self) -> bool:
        """Whether there is room to be given up."""
        try:
            return self._size > 0 and self._path.stat().st_size >= self._size
        except OSError:
            return False

    def load(self) -> bool:
        """Takes the room up; False if the disk doesn't have it, and then nothing of it is kept."""
        if self._size == 0 or self.is_aboard:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            finally:
                os.close(descriptor)
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """Gives the room up."""
        self._path.unlink(missing_ok=True)

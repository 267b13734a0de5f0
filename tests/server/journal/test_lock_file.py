"""The lock of a journal: one owner, found out by the next one, gone with the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seedance_server.journal.errors import JournalInUse, JournalUnusable
from seedance_server.journal.lock_file import LockFile


def test_lock_is_held_once(tmp_path: Path):
    """The second owner learns who the first is; after a release it is free."""
    first, second = LockFile(tmp_path / "journal.db"), LockFile(tmp_path / "journal.db")
    first.acquire()
    with pytest.raises(JournalInUse) as caught:
        second.acquire()
    assert caught.value.pid == os.getpid()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_lock_with_a_strange_content_is_still_a_lock(tmp_path: Path):
    """The number inside is a courtesy."""
    lock = LockFile(tmp_path / "journal.db")
    lock.acquire()
    (tmp_path / "journal.db.lock").write_text("???")
    with pytest.raises(JournalInUse) as caught:
        LockFile(tmp_path / "journal.db").acquire()
    assert caught.value.pid is None
    lock.release()


def test_lock_that_cannot_be_made_names_the_journal(tmp_path: Path):
    """The user is told which path is wrong."""
    with pytest.raises(JournalUnusable, match=r"missing/journal\.db"):
        LockFile(tmp_path / "missing" / "journal.db").acquire()

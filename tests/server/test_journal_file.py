"""Tests of `seedance_server.journal_file`."""

from pathlib import Path

import pytest

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.journal_file import default_journal_path, journal_limits, make_journal


def test_default_place_is_the_users_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the XDG rules: a relative or empty variable counts for nothing."""
    assert default_journal_path({"XDG_STATE_HOME": "/state"}) == Path("/state/seedance/journal.db")
    monkeypatch.setenv("HOME", str(tmp_path))
    for environment in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}):
        assert default_journal_path(environment) == tmp_path / ".local/state/seedance/journal.db"


def test_journal_is_a_file_of_its_user_alone_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The directory is made, and nobody else can look into it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert isinstance(make_journal(Config(model_path="m")), SqliteJournal)
    assert (tmp_path / "seedance").stat().st_mode & 0o777 == 0o700


def test_journal_without_durability_is_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is made on disk."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert isinstance(make_journal(Config(model_path="m", durability="none")), MemoryJournal)
    assert list(tmp_path.iterdir()) == []


def test_journal_that_cannot_be_is_one_line_for_the_operator(tmp_path: Path) -> None:
    """No such directory, a directory, a file in the way: which setting, and why."""
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "none" / "j.db", "must lie in a directory that exists"),
        (tmp_path, "must be a file"),
        (tmp_path / "file" / "j.db", "must lie in a directory that exists"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            make_journal(Config(model_path="m", journal_path=path))
        assert caught.value.setting == "--journal"


def test_default_place_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A state directory that is a file."""
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(ConfigError, match="Not a directory"):
        make_journal(Config(model_path="m"))


def test_promises_of_the_configuration_are_the_journals() -> None:
    """What WELCOME says of retention is what the journal keeps."""
    limits = journal_limits(
        Config(
            model_path="m",
            retention_s=1,
            idempotency_s=2,
            resume_window_s=3,
            orphan_grace_s=1,
            journal_quota_bytes=4,
            journal_reserve_bytes=0,
        )
    )
    assert (limits.retention_s, limits.idempotency_s, limits.session_s) == (1, 2, 3)
    assert (limits.tenant_bytes, limits.soft_free_bytes) == (4, 0)

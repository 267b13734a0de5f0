"""Ballast takes room up, gives it up, and never takes what isn't there."""

from __future__ import annotations

from pathlib import Path

from seedance_server.journal.ballast import Ballast


def test_ballast_takes_room_and_gives_it_up(tmp_path: Path):
    """The room is real blocks, or giving it up would free nothing."""
    path = tmp_path / "ballast"
    ballast = Ballast(path, 65_536)
    assert ballast.load()
    assert ballast.is_aboard
    assert path.stat().st_blocks * 512 >= 65_536
    assert ballast.load()
    ballast.drop()
    ballast.drop()
    assert not ballast.is_aboard
    assert not path.exists()


def test_ballast_leaves_nothing_when_there_is_no_room(tmp_path: Path):
    """A disk too small for it is left as it was."""
    ballast = Ballast(tmp_path / "missing" / "ballast", 65_536)
    assert not ballast.load()
    assert not Ballast(tmp_path / "ballast", 2**62).load()
    assert list(tmp_path.iterdir()) == []


def test_no_ballast_is_no_file(tmp_path: Path):
    """A size of 0 switches it off."""
    ballast = Ballast(tmp_path / "ballast", 0)
    assert ballast.load()
    assert not ballast.is_aboard
    assert list(tmp_path.iterdir()) == []

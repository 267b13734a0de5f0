"""Tests of `seedance_server.key_command`."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from seedance_server.errors import StartupError
from seedance_server.key_command import KEYS_VARIABLE, run_key_command
from seedance_server.key_file import read_key_file
from seedance_server.keys import KeyRing

EVENTS = ("--events-per-minute", "90")


def run(*arguments: str, **more: object) -> int:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return run_key_command(arguments, now=lambda: now, **({"environment": {}} | more))


def test_key_is_made_shown_once_and_revoked(tmp_path: Path, capsys) -> None:
    """stdout holds the key alone, so that it can be piped; the list never shows it."""
    path = tmp_path / "keys.toml"
    place = ("--keys", str(path))
    assert run("add", "acme", "--weight", "3", "--tokens-per-minute", "60000", *EVENTS, *place) == 0
    text, err = capsys.readouterr()
    text = text.removesuffix("\n")
    (key,) = read_key_file(path).keys.values()
    assert KeyRing([key]).find(text) == key
    assert key.id in err
    assert text not in path.read_text()
    run("list", *place)
    listed = capsys.readouterr().out
    limits = "weight 3, normal, 60000 tokens/min, 90 events/min"
    assert listed == f"acme  {limits}\n  {key.id}  open     2026-01-02 03:04:05+00:00\n"
    run("revoke", key.id, *place)
    run("list", *place)
    assert f"{key.id}  revoked" in capsys.readouterr().out


def test_path_may_come_from_the_environment(tmp_path: Path, capsys) -> None:
    """The flag's twin, the server's own."""
    path = tmp_path / "keys.toml"
    run("add", "acme", environment={KEYS_VARIABLE: str(path)}, entropy=os.urandom)
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required"),
        (["add", "acme"], "--keys is needed"),
        (["add", "--keys", "k"], "tenant"),
        (["add", "a b", "--keys", "k"], "a name has"),
        (["add", "acme", "--keys", "k", "--weight", "0"], "weight must be"),
        (["add", "acme", "--keys", "k", "--priority", "x"], "--priority"),
        (["list", "--keys", "/nowhere/k"], "can't be read"),
        (["revoke", "0123456789ab", "--keys", "/nowhere/k"], "can't be written"),
        (["lst", "--keys", "k"], "invalid choice"),
    ],
)
def test_command_says_in_one_line_what_is_wrong(arguments: list[str], words: str) -> None:
    """As the server's own flags do."""
    with pytest.raises(StartupError, match=words) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)

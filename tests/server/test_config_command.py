"""Tests of `seedance_server.config_command`."""

import tomllib
from pathlib import Path

import pytest

import seedance_server.__main__ as command
from seedance_server.config import Config
from seedance_server.config_command import run_config_command
from seedance_server.errors import ConfigError
from seedance_server.flags import settings
from seedance_server.given_settings import read_given

KEY = "0123456789abcdef-secret"
NO_FILE = {"SEEDANCE_CONFIG": "/dev/null"}


def test_config_shows_every_setting_and_where_it_is_from(tmp_path: Path, capsys) -> None:
    """Flag, variable, file or default stands beside each value."""
    file = tmp_path / "s.toml"
    file.write_text('model-path = "a model"\nmax-conns = 7\n')
    arguments = ["--config", str(file), "--port", "9000", "--kv-memory", "1.5GiB"]
    assert run_config_command(arguments, environment={"SEEDANCE_LOG_LEVEL": "debug"}) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split(" = ")[0]: line for line in lines if " = " in line}
    assert lines[0] == f"# file: {file}"
    assert shown["model-path"].split() == ["model-path", "=", '"a', 'model"', "#", str(file)]
    assert shown["max-conns"].endswith(f"# {file}")
    assert shown["port"].split() == ["port", "=", "9000", "#", "--port"]
    assert shown["kv-memory"].split() == ["kv-memory", "=", '"1536MiB"', "#", "--kv-memory"]
    assert shown["log-level"].split() == ["log-level", "=", '"debug"', "#", "SEEDANCE_LOG_LEVEL"]
    assert shown["shutdown-timeout"].split() == ["shutdown-timeout", "=", '"30s"', "#", "default"]
    assert any(line.split() == ["#", "keys", "is", "not", "set", "#", "default"] for line in lines)
    for setting in settings().values():
        assert any(line.split()[:1] == [setting.key] or f"# {setting.key} is" in line for line in lines)


def test_config_prints_a_file_that_says_the_same(tmp_path: Path, capsys) -> None:
    """What it prints can be kept as the file, whatever characters are in it."""
    odd = 'a "model" in\\a \t dir\x7f é😀'
    arguments = ["--model-path", odd, "--allow-origin", "https://a", "--allow-origin", "https://b"]
    arguments += [
        "--orphan-grace",
        "1m30s",
        "--send-timeout",
        "0.3",
        "--segment",
        "100000",
        "--itl-budget-ms",
        "40",
    ]
    run_config_command(arguments, environment=NO_FILE)
    text = capsys.readouterr().out
    tomllib.loads(text)
    again = tmp_path / "again.toml"
    again.write_text(text)
    wanted = Config(**read_given(arguments, NO_FILE).values)
    assert Config(**read_given(["--config", str(again)], {}).values) == wanted


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_config_never_shows_a_secret(way: str, tmp_path: Path, capsys) -> None:
    """It can be pasted into a report."""
    file = tmp_path / "s.toml"
    file.write_text(f'api-key = "{KEY}"\n' if way == "file" else "")
    arguments = ["--config", str(file), *(["--api-key", KEY] if way == "flag" else [])]
    run_config_command(arguments, environment={"SEEDANCE_API_KEY": KEY} if way == "variable" else {})
    out = capsys.readouterr().out
    assert "secret" not in out
    assert "# api-key is set, and not shown" in out


def test_config_complains_of_what_the_server_would(capsys) -> None:
    """It is a way to try settings out; only the model may be missing."""
    with pytest.raises(ConfigError, match="--port must be from 0 to 65535"):
        run_config_command(["--port", "70000"], environment=NO_FILE)
    assert command.main(["config", "--prot", "1"]) == 2
    assert "did you mean --port?" in capsys.readouterr().err


def test_config_says_where_it_looked_and_what_it_ignored(capsys) -> None:
    """The two questions that one has when a setting seems to have no effect."""
    run_config_command([], environment={"HOME": "/nowhere", "SEEDANCE_PROT": "1"})
    out = capsys.readouterr().out
    assert "# no file: looked for /nowhere/.config/seedance/server.toml, /etc/seedance/server.toml\n" in out
    assert "# no setting: SEEDANCE_PROT; did you mean SEEDANCE_PORT?\n" in out

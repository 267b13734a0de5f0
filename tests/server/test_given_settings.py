"""Tests of `seedance_server.given_settings`."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from seedance_server.config import Config
from seedance_server.errors import StartupError
from seedance_server.flags import settings
from seedance_server.given_settings import read_config, read_given
from seedance_server.setting import Setting


def file_of(tmp_path: Path, text: str) -> str:
    """A file of settings with this in it; its path."""
    path = tmp_path / "server.toml"
    path.write_text(text)
    return str(path)


def another(name: str, setting: Setting) -> str:
    """Text of a value that isn't the setting's default."""
    default = attrs.fields_dict(Config)[name].default
    if setting.choices:
        return next(choice for choice in setting.choices if choice != default)
    if setting.metavar == "NETWORK":
        return "10.0.0.0/8"
    if setting.metavar == "ORIGIN":
        return "https://chat.example"
    if setting.repeatable or setting.parse in (str, Path):
        return "something"
    return setting.show(11 if default is None else default + 11)


@pytest.mark.parametrize("name", settings())
def test_every_setting_is_read_alike_from_flag_variable_and_file(name: str, tmp_path: Path) -> None:
    """Whoever adds a field to Config has three ways to set it."""
    setting = settings()[name]
    text = another(name, setting)
    in_file = f'["{text}"]' if setting.repeatable else f'"{text}"'
    ways: list[tuple[list[str], dict[str, str]]] = [
        ([setting.flag, text], {}),
        ([], {setting.environment: text}),
        (["--config", file_of(tmp_path, f"{setting.key} = {in_file}")], {}),
    ]
    read = [read_given([*arguments], {"SEEDANCE_CONFIG": "/dev/null", **more}) for arguments, more in ways]
    assert read[0].values[name] == read[1].values[name] == read[2].values[name]
    assert read[0].values[name] != attrs.fields_dict(Config)[name].default
    origins = [one.origins for one in read]
    assert origins == [{name: setting.flag}, {name: setting.environment}, {name: str(read[2].file)}]


def test_flag_wins_over_variable_and_variable_over_default() -> None:
    """Flag before variable before default."""
    base = ["--model-path", "m"]
    assert read_config(base, {}).port == 8080
    assert read_config(base, {"SEEDANCE_PORT": "1"}).port == 1
    assert read_config([*base, "--port", "2"], {"SEEDANCE_PORT": "1"}).port == 2
    assert read_config([], {"SEEDANCE_MODEL_PATH": "m"}).model_path == "m"
    assert read_config(base, {"SEEDANCE_PORT": ""}).port == 8080


def test_repeatable_flags_are_lists_both_ways() -> None:
    """Repeated on the command line, separated by commas in the environment."""
    flags = ["--model-path", "m", "--allow-origin", "https://a", "--allow-origin", "https://b"]
    assert read_config(flags, {}).allow_origins == ("https://a", "https://b")
    variables = {"SEEDANCE_ALLOW_ORIGIN": "https://a, https://b"}
    assert read_config(["--model-path", "m"], variables).allow_origins == ("https://a", "https://b")


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--port"], {}, "--port"),
        (["--port", "x"], {}, "--port must be a whole number, not 'x'"),
        (["--send-timeout", "x"], {}, "--send-timeout must be a time such as 500ms"),
        (["--message-rate", "x"], {}, "--message-rate must be a number, not 'x'"),
        (["--kv-memory", "lots"], {}, "--kv-memory must be a size"),
        ([], {"SEEDANCE_PORT": "x"}, "SEEDANCE_PORT must be a whole number"),
        (["--model-path", ""], {}, "--model-path is needed"),
    ],
)
def test_wrong_settings_are_one_line_that_names_them(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    """Whichever way a wrong value came, the error says which and is one line."""
    given = arguments if "--model-path" in arguments else ["--model-path", "m", *arguments]
    with pytest.raises(StartupError, match=words) as caught:
        read_config(given, environment)
    assert "\n" not in str(caught.value)


def test_nothing_is_required_but_the_model() -> None:
    """One flag is enough to start."""
    with pytest.raises(StartupError, match="--model-path is needed"):
        read_config([], {})
    assert read_config(["--model-path", "m", "--kv-memory", "4GiB"], {}).kv_memory_bytes == 4 << 30


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path: Path) -> None:
    """The nearer to the command, the stronger; for lists too, which replace each other whole."""
    file = file_of(tmp_path, 'model-path = "m"\nport = 3\nmax-conns = 30\nallow-origin = ["https://f"]\n')
    variables = {"SEEDANCE_CONFIG": file, "SEEDANCE_PORT": "2", "SEEDANCE_ALLOW_ORIGIN": "https://v"}
    given = read_given(["--port", "1"], variables)
    config = Config(**given.values)
    assert (config.port, config.max_connections, config.allow_origins) == (1, 30, ("https://v",))
    assert given.origins == {
        "model_path": file,
        "port": "--port",
        "max_connections": file,
        "allow_origins": "SEEDANCE_ALLOW_ORIGIN",
    }
    assert config.max_head_bytes == 16_384


def test_the_flag_names_the_file_before_the_variable_does(tmp_path: Path) -> None:
    """One file is read, never two."""
    (tmp_path / "other").mkdir()
    named = file_of(tmp_path, "port = 1")
    other = file_of(tmp_path / "other", "max-conns = 7")
    given = read_given(["--config", named], {"SEEDANCE_CONFIG": other})
    assert str(given.file) == named
    assert given.values == {"port": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", r"server.toml has the unknown key 'prot'; did you mean port\?"),
        ("max_conns = 1", r"has the unknown key 'max_conns'; did you mean max-conns\?"),
        ("[limits]\nmax-conns = 1", "has the unknown key 'limits'"),
        ('port = "x"', r"port in \S+server.toml must be a whole number, not 'x'"),
        ("port = 70000", "--port must be from 0 to 65535"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    """An operator can go straight to the place."""
    with pytest.raises(StartupError, match=words) as caught:
        read_config(["--model-path", "m", "--config", file_of(tmp_path, text)], {})
    assert "\n" not in str(caught.value)


def test_variables_that_look_like_settings_are_told(tmp_path: Path) -> None:
    """A misspelt variable can't be an error, others may own it; it isn't silently nothing either."""
    variables: dict[str, Any] = {
        "SEEDANCE_MAX_CONN": "1",
        "SEEDANCE_URL": "u",
        "SEEDANCE_CONFIG": "/dev/null",
        "X": "",
    }
    assert read_given([], variables).strangers == ("SEEDANCE_MAX_CONN; did you mean SEEDANCE_MAX_CONNS?",)

"""Tests of `seedance_server.flags`."""

import argparse

import pytest

from seedance_server.errors import StartupError
from seedance_server.flags import build_parser, read_config, settings


def test_every_flag_has_a_twin_in_the_environment_and_help_names_both() -> None:
    """What the command line can set the environment can too, and --help shows it."""
    text = build_parser().format_help()
    flags = set()
    for action in build_parser()._actions:
        if not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            flags.update(action.option_strings)
    assert flags == {setting.flag for setting in settings().values()}
    for setting in settings().values():
        assert setting.flag in text
        assert setting.environment in text
        assert setting.environment == "SEEDANCE_" + setting.flag[2:].upper().replace("-", "_")


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
        (["--prot", "1"], {}, "unrecognized arguments: --prot"),
        (["--port"], {}, "--port"),
        (["--port", "x"], {}, "--port must be a whole number, not 'x'"),
        (["--send-timeout", "x"], {}, "--send-timeout must be a time such as 500ms"),
        (["--message-rate", "x"], {}, "--message-rate must be a number, not 'x'"),
        (["--kv-memory", "lots"], {}, "--kv-memory must be a size"),
        ([], {"SEEDANCE_PORT": "x"}, "SEEDANCE_PORT must be a whole number"),
        (["--model-path", ""], {}, "--model-path is needed"),
        (["--max-con", "5"], {}, "unrecognized"),
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

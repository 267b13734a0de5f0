"""Tests of `seedance_server.flags`."""

import argparse

import pytest

from seedance_server.errors import StartupError
from seedance_server.flags import CONFIG_VARIABLE, build_parser, read_flags, settings


def test_every_flag_has_a_twin_in_the_environment_and_help_names_both() -> None:
    """What the command line can set the environment can too, and --help shows it."""
    text = build_parser().format_help()
    flags = set()
    for action in build_parser()._actions:
        if not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            flags.update(action.option_strings)
    assert flags - {"--config"} == {setting.flag for setting in settings().values()}
    assert CONFIG_VARIABLE in text
    for setting in settings().values():
        assert setting.flag in text
        assert setting.environment in text
        assert setting.environment == "SEEDANCE_" + setting.flag[2:].upper().replace("-", "_")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prot", "1"], r"unrecognized arguments: --prot; did you mean --port\?"),
        (["--api-kye=0123456789abcdef"], r"unrecognized arguments: --api-kye; did you mean --api-key\?"),
        (["--api-kye", "0123456789abcdef"], r"unrecognized arguments: --api-kye; did you mean --api-key\?"),
        (["stray"], "unrecognized arguments: stray"),
        (["--max-con", "5"], r"--max-con; did you mean --max-conns\?"),
    ],
)
def test_flags_say_what_was_probably_meant_and_repeat_no_secret(arguments, words) -> None:
    """A slip of the pen is pointed out; a value behind it may be a key, so it is left out."""
    with pytest.raises(StartupError, match=words) as caught:
        read_flags(arguments)
    assert "0123456789abcdef" not in str(caught.value)


def test_defaults_in_help_are_written_as_people_write_them() -> None:
    """Nobody reads 1073741824."""
    text = " ".join(build_parser().format_help().split())
    assert "(default: 1GiB) [SEEDANCE_JOURNAL_QUOTA]" in text
    assert "(default: 30s) [SEEDANCE_SHUTDOWN_TIMEOUT]" in text


def test_no_two_settings_share_a_name() -> None:
    """Flags that differ only in a dash would have one variable."""
    names = [setting.environment for setting in settings().values()]
    assert len(set(names)) == len(names)
    assert CONFIG_VARIABLE not in names

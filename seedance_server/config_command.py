"""The command ``seedance-server config``: every setting as it would hold, and what each is from.

It takes the server's own flags, reads the same variables and file, and complains of the same mistakes. What
it prints is a file of settings itself: given to ``--config`` it has the same effect, but for secrets, which
are never printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from seedance_server.config import Config
from seedance_server.flags import settings
from seedance_server.given_settings import GivenSettings, read_given
from seedance_server.log import printable
from seedance_server.setting import Setting
from seedance_server.settings_file import search_path

__all__ = ["run_config_command"]

_COMMENT_COLUMN = 48
_LINE_CHARS = 4096


def run_config_command(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: What stands behind ``config``.
        environment: The variables; None for the process's own.

    Returns:
        The exit status.

    Raises:
        StartupError: A server with these settings would not start, and why; a missing model apart.
    """
    variables = os.environ if environment is None else environment
    given = read_given(arguments, variables)
    config = Config(**given.values)
    sys.stdout.write("".join(f"{line}\n" for line in _lines(config, given, variables)))
    return 0


def _lines(config: Config, given: GivenSettings, variables: Mapping[str, str]) -> list[str]:
    if given.file is not None:
        lines = [f"# file: {_printable(given.file)}"]
    else:
        lines = [f"# no file: looked for {', '.join(_printable(path) for path in search_path(variables))}"]
    lines += [f"# no setting: {_printable(name)}" for name in given.strangers]
    group = ""
    for name, setting in settings().items():
        if setting.group != group:
            group = setting.group
            lines += ["", f"# {group}"]
        lines.append(_line(setting, getattr(config, name), given.origins.get(name, "default")))
    return lines


def _line(setting: Setting, value: Any, origin: str) -> str:
    if value in (None, "", ()):
        text = f"# {setting.key} is not set"
    elif setting.secret:
        text = f"# {setting.key} is set, and not shown"
    else:
        text = f"{setting.key} = {_toml(setting, value)}"
    return f"{text:<{_COMMENT_COLUMN}}  # {_printable(origin)}"


def _toml(setting: Setting, value: Any) -> str:
    if setting.repeatable:
        return f"[{', '.join(_quoted(setting.show(one)) for one in value)}]"
    shown = setting.show(value)
    is_number = isinstance(value, int | float) and shown == str(value)
    return shown if is_number else _quoted(shown)


def _quoted(text: str) -> str:
    # JSON's strings are TOML's, but for DEL, which must be escaped in the latter.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(thing: object) -> str:
    return printable(str(thing), _LINE_CHARS)

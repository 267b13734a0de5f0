"""The command line, derived from `Config`: a flag for each field, and help that names its twins.

Whatever field `Config` has can be set in three ways under one name: ``--max-conns``, ``SEEDANCE_MAX_CONNS``
and ``max-conns`` in the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

import attrs

from seedance_server import __version__
from seedance_server.config import Config
from seedance_server.errors import StartupError
from seedance_server.setting import Setting
from seedance_server.settings_file import likely_meant

__all__ = ["CONFIG_VARIABLE", "build_parser", "read_flags", "settings"]

CONFIG_VARIABLE = "SEEDANCE_CONFIG"
"""The environment's twin of ``--config``."""


def settings() -> dict[str, Setting]:
    """Every setting by the name of its field, in the order of ``--help``."""
    return {field.name: field.metadata["setting"] for field in attrs.fields(Config)}


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the full usage is one ``--help`` away."""

    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message} (see --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser; it leaves unset whatever isn't on the command line.

    Raises:
        StartupError: From its ``parse_args``, for arguments that it doesn't know.
    """
    parser = _OneLineParser(
        prog="seedance-server",
        description="Streams a language model's tokens over WebSocket.",
        epilog="Each flag has a twin in the environment, shown in brackets, and one in the file of settings: "
        "its name without the dashes. The flag wins over the variable, the variable over the file. "
        "`seedance-server config` shows what holds and why; tenants' keys are made and revoked by "
        "`seedance-server keys`.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"seedance-server {__version__}")
    parser.add_argument(
        "--config",
        metavar="PATH",
        help="file of settings, TOML (default: seedance/server.toml in the user's configuration directory, "
        f"then in /etc) [{CONFIG_VARIABLE}]",
    )
    groups: dict[str, Any] = {}
    defaults = {field.name: field.default for field in attrs.fields(Config)}
    for name, setting in settings().items():
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        groups[setting.group].add_argument(
            setting.flag,
            dest=name,
            metavar=setting.metavar,
            action="append" if setting.repeatable else "store",
            default=None,
            help=_explain(setting, defaults[name]),
        )
    return parser


def _explain(setting: Setting, default: object) -> str:
    parts = [setting.help]
    if setting.choices:
        parts.append(f"({', '.join(setting.choices)})")
    if default not in (None, "", ()):
        parts.append(f"(default: {setting.show(default)})")
    parts.append(f"[{setting.environment}]")
    return " ".join(parts).replace("%", "%%")


def read_flags(arguments: Sequence[str] | None) -> dict[str, Any]:
    """What stands on the command line: texts by field name, and ``config``; None for what doesn't.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Raises:
        StartupError: It can't be read. Only names are repeated: a value may be a secret.
        SystemExit: After ``--help`` and ``--version``.
    """
    parser = build_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        strange = [word.partition("=")[0] for word in unknown if word.startswith("-")] or unknown
        meant = likely_meant(strange[0], [setting.flag for setting in settings().values()])
        parser.error(f"unrecognized arguments: {' '.join(strange)}{meant}")
    return vars(given)

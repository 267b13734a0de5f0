"""The command line and the environment, derived from `Config`: flag before variable before default.

Whatever field `Config` has can be set both ways, under one name: ``--max-conns`` and ``SEEDANCE_MAX_CONNS``.
A wrong value is one line, whichever way it came.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import attrs

from seedance_server import __version__
from seedance_server.config import Config
from seedance_server.errors import ConfigError, StartupError
from seedance_server.setting import Setting

__all__ = ["build_parser", "read_config", "settings"]


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
        epilog="Each flag has a twin in the environment, shown in brackets; the flag wins. "
        "Keys of tenants are made and revoked by `seedance-server keys`.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"seedance-server {__version__}")
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
        parts.append(f"(default: {default})")
    parts.append(f"[{setting.environment}]")
    return " ".join(parts).replace("%", "%%")


def read_config(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Config:
    """Reads the settings.

    Args:
        arguments: The command line without the program's name; None for the process's own.
        environment: The variables; None for the process's own.

    Raises:
        StartupError: Naming the flag or variable at fault.
        SystemExit: After ``--help`` and ``--version``.
    """
    variables = os.environ if environment is None else environment
    given = vars(build_parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for name, setting in settings().items():
        text = given[name]
        source = setting.flag
        if text is None:
            text = variables.get(setting.environment) or None
            source = setting.environment
            if text is not None and setting.repeatable:
                text = [part.strip() for part in text.split(",") if part.strip()]
        if text is not None:
            values[name] = _parse(setting, source, text)
    if not values.get("model_path"):
        raise ConfigError("--model-path", "is needed: a model directory, a hub id or a GGUF file")
    return Config(**values)


def _parse(setting: Setting, source: str, text: Any) -> Any:
    try:
        if setting.repeatable:
            return tuple(setting.parse(part) for part in text)
        return setting.parse(text)
    except ValueError as error:
        kind = {int: "must be a whole number", float: "must be a number"}.get(setting.parse)  # type: ignore[call-overload]
        reason = f"{kind}, not {text!r}" if kind else str(error)
        raise ConfigError(source, reason) from None

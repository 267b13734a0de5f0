"""What was set, by flag, variable or file, and which of them won: a flag before a variable before the file.

A wrong value is one line, whichever way it came.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.flags import CONFIG_VARIABLE, read_flags, settings
from seedance_server.setting import Setting
from seedance_server.settings_file import find_settings_file, likely_meant, read_settings_file

__all__ = ["GivenSettings", "make_config", "read_config", "read_given"]

_PREFIX = "SEEDANCE_"
_OTHERS = {CONFIG_VARIABLE, "SEEDANCE_URL"}
"""Variables that have a meaning without being settings; the last one is the SDK's."""


@frozen(kw_only=True)
class GivenSettings:
    """What was set, and by what.

    Attributes:
        values: By the field's name; what isn't here has its default.
        origins: The flag, variable or file that each value is from.
        file: The file that was read, if there was one.
        strangers: Variables that look like settings and are none, with what was probably meant.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    file: Path | None
    strangers: tuple[str, ...]


def read_config(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Config:
    """Reads the settings; see `read_given`.

    Raises:
        StartupError: Naming the flag, variable or key at fault.
        SystemExit: After ``--help`` and ``--version``.
    """
    return make_config(read_given(arguments, environment))


def make_config(given: GivenSettings) -> Config:
    """The settings of a server.

    Raises:
        StartupError: One can't be used, or there is no model.
    """
    if not given.values.get("model_path"):
        raise ConfigError("--model-path", "is needed: a model directory, a hub id or a GGUF file")
    return Config(**given.values)


def read_given(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> GivenSettings:
    """Reads what was set.

    Args:
        arguments: The command line without the program's name; None for the process's own.
        environment: The variables; None for the process's own.

    Raises:
        StartupError: Naming the flag, variable or key that can't be read.
        SystemExit: After ``--help`` and ``--version``.
    """
    variables = os.environ if environment is None else environment
    known = settings()
    flags = read_flags(arguments)
    file = find_settings_file(flags.pop("config") or variables.get(CONFIG_VARIABLE), variables)
    in_file = {} if file is None else read_settings_file(file, known)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, setting in known.items():
        if (text := flags[name]) is not None:
            origin = source = setting.flag
        elif (text := _variable(setting, variables)) is not None:
            origin = source = setting.environment
        elif (text := in_file.get(name)) is not None:
            origin, source = str(file), f"{setting.key} in {file}"
        else:
            continue
        values[name] = _parse(setting, source, text)
        origins[name] = origin
    return GivenSettings(values=values, origins=origins, file=file, strangers=_strangers(variables, known))


def _variable(setting: Setting, variables: Mapping[str, str]) -> str | list[str] | None:
    """An empty variable is one that isn't set; a list is separated by commas."""
    text = variables.get(setting.environment) or None
    if text is not None and setting.repeatable:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _strangers(variables: Mapping[str, str], known: Mapping[str, Setting]) -> tuple[str, ...]:
    names = {setting.environment for setting in known.values()} | _OTHERS
    strange = sorted(name for name in variables if name.startswith(_PREFIX) and name not in names)
    return tuple(f"{name}{likely_meant(name, names)}" for name in strange)


def _parse(setting: Setting, source: str, text: Any) -> Any:
    try:
        if setting.repeatable:
            return tuple(setting.parse(part) for part in text)
        return setting.parse(text)
    except ValueError as error:
        kind = {int: "must be a whole number", float: "must be a number"}.get(setting.parse)  # type: ignore[call-overload]
        reason = f"{kind}, not {text!r}" if kind else str(error)
        raise ConfigError(source, reason) from None

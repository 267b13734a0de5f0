"""The file of settings: where it is looked for, and what stands in it, as text for each setting.

TOML, flat: a key for each flag, under the flag's name without its dashes. A key that isn't one is an error,
with what was probably meant, so that no setting is ever ignored for a slip of the pen.

It must not know which settings there are, nor what a value means.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seedance_server.errors import SettingsFileError
from seedance_server.setting import Setting

__all__ = ["find_settings_file", "likely_meant", "read_settings_file", "search_path"]

_NAME = Path("seedance") / "server.toml"
_SWITCH = {True: "on", False: "off"}
_MAX_BYTES = 1 << 20
"""Far above what all settings take; a device or a log given by mistake isn't read to its end."""


def search_path(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where a file is looked for when none is named: the user's own, then the machine's."""
    base = environment.get("XDG_CONFIG_HOME", "")
    home = environment.get("HOME", "")
    own: Path | None = None
    if base and Path(base).is_absolute():  # a relative one is to be ignored, says that specification
        own = Path(base)
    elif home:
        own = Path(home) / ".config"
    system = Path("/etc") / _NAME
    return (system,) if own is None else (own / _NAME, system)


def find_settings_file(named: str | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one that was named, else the first that is there, else none."""
    if named:
        return Path(named)
    return next((path for path in search_path(environment) if path.exists()), None)


def read_settings_file(path: Path, settings: Mapping[str, Setting]) -> dict[str, str | list[str]]:
    """Reads what the file says, as the text that a flag would have: a list where that is repeatable.

    Args:
        path: The file.
        settings: Every setting by its field's name.

    Returns:
        Texts by the field's name.

    Raises:
        SettingsFileError: It can't be read, isn't TOML, or has a key or value that is no setting's.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise SettingsFileError(path, f"is larger than {_MAX_BYTES} bytes")
        table = tomllib.loads(content.decode())
    except OSError as error:
        raise SettingsFileError(path, f"can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsFileError(path, f"isn't TOML: {error}") from error
    names = {setting.key: name for name, setting in settings.items()}
    texts: dict[str, str | list[str]] = {}
    for key, value in table.items():
        if key not in names:
            raise SettingsFileError(
                path, f"has the unknown key {key!r}{likely_meant(key.replace('_', '-'), names)}"
            )
        setting = settings[names[key]]
        try:
            texts[names[key]] = _texts(value) if setting.repeatable else _text(value, setting.choices)
        except ValueError as error:
            raise SettingsFileError(path, f"has a wrong value: {key} {error}") from None
    return texts


def likely_meant(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` where a known name is close, else nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _texts(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    raise ValueError('must be a list of strings, such as ["one"]')


def _text(value: Any, choices: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        if _SWITCH[value] in choices:
            return _SWITCH[value]
        raise ValueError("can't be true or false")
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("must be one value: text or a number")

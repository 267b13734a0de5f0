"""One setting: how it is read from text, what it is called and how it is explained.

It must not know which settings there are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import attrs
from attrs import frozen

__all__ = ["Setting", "is_loopback", "parse_bytes", "setting_field"]

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Reads a size as people write it: ``1048576``, ``512MiB``, ``4 GiB``, ``1.5g``.

    Raises:
        ValueError: If ``text`` isn't a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a size such as 512MiB or 4GiB, not {text!r}")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@frozen(kw_only=True)
class Setting:
    """How one field of `Config` is read and explained.

    Attributes:
        help: One sentence for ``--help``; for a limit, its reason.
        parse: Turns text into the value; raises ValueError with a reason.
        flag: Name on the command line.
        metavar: What stands for the value in ``--help``.
        group: Heading in ``--help``.
        repeatable: The flag may be given several times; the environment separates by commas.
        choices: The only values allowed, if they are few.
    """

    help: str
    parse: Callable[[str], Any]
    flag: str
    metavar: str
    group: str
    repeatable: bool = False
    choices: tuple[str, ...] = ()

    @property
    def environment(self) -> str:
        """The environment variable that sets the same."""
        return "SEEDANCE_" + self.flag.removeprefix("--").replace("-", "_").upper()


def setting_field(
    default: Any, flag: str, metavar: str, help_text: str, *, group: str, **more: Any
) -> Any:  # attrs turns it into the field's own type
    """Returns the field of a class of settings, with its `Setting` in the metadata.

    Args:
        default: Its value where nothing was given.
        flag: See `Setting`, as for the others.
        metavar: Likewise.
        help_text: Likewise.
        group: Likewise.
        **more: Likewise; ``parse`` is the default's type unless given.
    """
    parse = more.pop("parse", None) or (type(default) if default is not None else str)
    setting = Setting(help=help_text, parse=parse, flag=flag, metavar=metavar, group=group, **more)
    return attrs.field(default=default, metadata={"setting": setting})

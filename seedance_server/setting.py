"""One setting: how it is read from text, what it is called and how it is explained.

It must not know which settings there are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import attrs
from attrs import frozen

from seedance_server.quantities import (
    parse_bytes,
    parse_milliseconds,
    parse_seconds,
    show_bytes,
    show_milliseconds,
    show_seconds,
)

__all__ = ["Setting", "is_loopback", "setting_field"]

_KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "SIZE": (parse_bytes, show_bytes),
    "SECONDS": (parse_seconds, show_seconds),
    "MS": (parse_milliseconds, show_milliseconds),
}
"""How values with a unit are read and shown, by what stands for them in ``--help``."""


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
        show: Turns one value into text that ``parse`` reads.
        secret: The value is never shown.
    """

    help: str
    parse: Callable[[str], Any]
    flag: str
    metavar: str
    group: str
    repeatable: bool = False
    choices: tuple[str, ...] = ()
    show: Callable[[Any], str] = str
    secret: bool = False

    @property
    def key(self) -> str:
        """The key in a file that sets the same."""
        return self.flag.removeprefix("--")

    @property
    def environment(self) -> str:
        """The environment variable that sets the same."""
        return "SEEDANCE_" + self.key.replace("-", "_").upper()


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
        **more: Likewise; how it is read and shown follows from the metavar where that is SIZE, SECONDS or MS,
            else ``parse`` is the default's type unless given.
    """
    kind = _KINDS.get(metavar, (type(default) if default is not None else str, str))
    more = {"parse": kind[0], "show": kind[1], **more}
    setting = Setting(help=help_text, flag=flag, metavar=metavar, group=group, **more)
    return attrs.field(default=default, repr=not setting.secret, metadata={"setting": setting})

"""Who the server works for: a tenant's weight, priority and limits, as the operator wrote them down.

A limit that isn't set is the server's own. The record never changes; a key file that is read again brings
another record of the same name, and `accounts.py` holds what a tenant uses.

It must not know keys, files or connections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from attrs import fields, frozen

__all__ = ["LOCAL", "Priority", "Rate", "Tenant", "read_tenant"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_UNDER_LOAD = 1.5
"""What the formula of S25 makes of a base at full load."""
_MAX_WEIGHT = 1_000.0
"""Beyond it the smallest tenant's share is no share any more."""


class Priority(Enum):
    """A class of tenants. Within the engine a higher class goes first only as far as nobody starves."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """A number for schedulers: the higher, the sooner."""
        return {Priority.HIGH: 1, Priority.NORMAL: 0, Priority.LOW: -1}[self]


@frozen
class Rate:
    """A quota that moves with the load (S25).

    Attributes:
        base: What it is without load.
        least: It never falls below this.
        most: It never rises above this.
    """

    base: float
    least: float
    most: float

    @classmethod
    def of(cls, base: float) -> Rate:
        """The usual bounds: from the base to what full load makes of it."""
        return cls(base, base, base * _MOST_UNDER_LOAD)


@frozen(kw_only=True)
class Tenant:
    """One tenant; None for a limit leaves it to the server's own.

    Attributes:
        name: In the journal, in logs and in the key file; what it has is kept under this name.
        weight: Its share of the engine, in proportion to the others'.
        priority: Its class.
        max_connections: WebSockets at once.
        max_streams: Requests at once over all its connections, waiting ones included.
        tokens_per_minute: Tokens of prompts and answers.
        bytes_per_second: What is sent to it, over all its connections.
        journal_bytes: What its streams may take in the journal.
        events_per_minute: Events that it may report.
    """

    name: str
    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    max_connections: int | None = None
    max_streams: int | None = None
    tokens_per_minute: Rate | None = None
    bytes_per_second: Rate | None = None
    journal_bytes: int | None = None
    events_per_minute: Rate | None = None


LOCAL = Tenant(name="local")
"""Whose everything is where there is no key file."""


def read_tenant(name: str, table: Mapping[str, Any]) -> Tenant:
    """Reads a tenant as it stands in a key file.

    Args:
        name: Its name.
        table: Its settings, as TOML gives them.

    Raises:
        ValueError: In one line: which setting, and what is right.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"tenant {name!r}: a name has up to 64 letters, digits, dots, dashes and underscores"
        )
    readers: Mapping[str, Callable[[Any], Any]] = {
        "weight": _read_weight,
        "priority": _read_priority,
        "max_connections": _read_count,
        "max_streams": _read_count,
        "tokens_per_minute": _read_rate,
        "bytes_per_second": _read_rate,
        "journal_bytes": _read_count,
        "events_per_minute": _read_rate,
    }
    assert {field.name for field in fields(Tenant)} == {"name", *readers}  # noqa: S101 - one reader each
    values = {}
    for setting, value in table.items():
        if setting not in readers:
            raise ValueError(
                f"tenant {name}: there is no setting {setting!r}; there are {', '.join(readers)}"
            )
        try:
            values[setting] = readers[setting](value)
        except ValueError as error:
            raise ValueError(f"tenant {name}: {setting} {error}, not {value!r}") from None
    return Tenant(name=name, **values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_weight(value: Any) -> float:
    if not _is_number(value) or not 1 / _MAX_WEIGHT <= value <= _MAX_WEIGHT:
        raise ValueError(f"must be a number from {1 / _MAX_WEIGHT} to {_MAX_WEIGHT:g}")
    return float(value)


def _read_priority(value: Any) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(each.value for each in Priority)}") from None


def _read_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
        raise ValueError("must be a whole number above 0")
    return value


def _read_rate(value: Any) -> Rate:
    table = value if isinstance(value, dict) else {"base": value}
    if not {"base"} <= table.keys() <= {"base", "min", "max"} or not all(
        _is_number(number) and 0 < number < 2**63 for number in table.values()
    ):
        raise ValueError("must be a number above 0, or { base = …, min = …, max = … }")
    usual = Rate.of(float(table["base"]))
    rate = Rate(usual.base, float(table.get("min", usual.least)), float(table.get("max", usual.most)))
    if rate.least > rate.most:
        raise ValueError("must have its min at most its max")
    return rate

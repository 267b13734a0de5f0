"""Typed reading of parsed JSON, and how JSON writes what it has no type for.

JSON has one kind of number, and many readers keep 53 bits of it; so integers above 2**53 travel as strings,
and real numbers that are not finite as ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` where the protocol
allows them. Bytes travel as hexadecimal digits. Every complaint names the field by its path. Ranges are
`validity.py`'s business, meaning is the caller's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from .envelope import MAX_LIST_ENTRIES
from .validity import InvalidFieldError, check_count

__all__ = ["Fields", "Json", "as_integer", "hexadecimal", "integer", "number", "present", "real", "unreal"]

Json = object
"""What `json.loads` returns: None, bool, int, float, str, list or dict of the same."""

_EXACT: Final = 2**53
_DIGITS: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_Value = TypeVar("_Value")


def integer(value: int | None) -> int | str | None:
    """Returns what stands for ``value`` in JSON: itself, or its digits where a reader might round it."""
    return value if value is None or -_EXACT <= value <= _EXACT else str(value)


def unreal(value: float) -> float | str:
    """Returns what stands for a real number in JSON, finite or not."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def present(**members: Json) -> dict[str, Json]:
    """Returns the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def as_integer(path: str, value: Json) -> int:
    """Reads an integer, as a number or as digits.

    Raises:
        InvalidFieldError: It is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    raise InvalidFieldError(path, "must be an integer")


def number(path: str, value: Json) -> float:
    """Reads a finite number.

    Raises:
        InvalidFieldError: It is none.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if math.isfinite(result):
            return result
    raise InvalidFieldError(path, "must be a finite number")


def real(path: str, value: Json) -> float:
    """Reads a real number, finite or one of the three strings that `unreal` makes.

    Raises:
        InvalidFieldError: It is none.
    """
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    return number(path, value)


def hexadecimal(path: str, value: Json) -> bytes:
    """Reads bytes from hexadecimal digits.

    Raises:
        InvalidFieldError: They are none.
    """
    if isinstance(value, str) and re.fullmatch(r"(?:[0-9a-fA-F]{2})*", value, re.ASCII):
        return bytes.fromhex(value)
    raise InvalidFieldError(path, "must be an even number of hexadecimal digits")


class Fields:
    """The members of one JSON object, read by name and type.

    A member that is absent or null is the same. Reading one that is required and absent, or of another type,
    raises `InvalidFieldError` with its path.

    Args:
        value: The parsed object.
        path: Where it stands in its message; empty for the message itself.
    """

    def __init__(self, value: Json, path: str = "") -> None:
        if not isinstance(value, dict):
            raise InvalidFieldError(path or "message", "must be an object")
        self._members: dict[str, Json] = value
        self._prefix = f"{path}." if path else ""
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        """Returns the path of a member."""
        return self._prefix + name

    def optional(self, name: str) -> Json:
        """Returns a member as it is, or None."""
        self._read.add(name)
        return self._members.get(name)

    def required(self, name: str) -> Json:
        """Returns a member as it is."""
        value = self.optional(name)
        if value is None:
            raise InvalidFieldError(self.path(name), "is missing")
        return value

    def text(self, name: str) -> str:
        """Returns a string."""
        return self._is(str, "a string", name, self.required(name))

    def optional_text(self, name: str) -> str | None:
        """Returns a string or None."""
        value = self.optional(name)
        return None if value is None else self._is(str, "a string", name, value)

    def integer(self, name: str) -> int:
        """Returns an integer."""
        return as_integer(self.path(name), self.required(name))

    def optional_integer(self, name: str) -> int | None:
        """Returns an integer or None."""
        value = self.optional(name)
        return None if value is None else as_integer(self.path(name), value)

    def optional_number(self, name: str) -> float | None:
        """Returns a finite number or None."""
        value = self.optional(name)
        return None if value is None else number(self.path(name), value)

    def real(self, name: str) -> float:
        """Returns a real number, which may be infinite or NaN."""
        return real(self.path(name), self.required(name))

    def flag(self, name: str) -> bool:
        """Returns a boolean; absent is false."""
        value = self.optional(name)
        return False if value is None else self._is(bool, "true or false", name, value)

    def hexadecimal(self, name: str) -> bytes:
        """Returns bytes."""
        return hexadecimal(self.path(name), self.required(name))

    def optional_hexadecimal(self, name: str) -> bytes | None:
        """Returns bytes or None."""
        value = self.optional(name)
        return None if value is None else hexadecimal(self.path(name), value)

    def array(self, name: str, *, limit: int | None = MAX_LIST_ENTRIES) -> list[Json]:
        """Returns a list of ``limit`` entries at most; absent is empty."""
        value = self.optional(name)
        entries = [] if value is None else self._is(list, "a list", name, value)
        if limit is not None:
            check_count(self.path(name), len(entries), limit)
        return entries

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns strings; absent is none."""
        values = self.array(name)
        return tuple(self._is(str, "a string", f"{name}[{i}]", value) for i, value in enumerate(values))

    def integers(self, name: str, *, limit: int | None = MAX_LIST_ENTRIES) -> tuple[int, ...]:
        """Returns integers; absent is none."""
        values = self.array(name, limit=limit)
        kinds = set(map(type, values))  # all alike as a rule, and there may be a hundred thousand
        if kinds <= {int}:
            return tuple(values)  # type: ignore[arg-type]
        if kinds == {str} and all(map(_DIGITS.fullmatch, values)):  # type: ignore[arg-type]
            return tuple(map(int, values))  # type: ignore[arg-type]
        path = self.path(name)
        return tuple(as_integer(f"{path}[{i}]", value) for i, value in enumerate(values))

    def choice(self, name: str, choices: Mapping[str, _Value]) -> _Value:
        """Returns what one of several strings stands for."""
        value = self.text(name)
        if value not in choices:
            raise InvalidFieldError(self.path(name), f"must be one of {', '.join(choices)}")
        return choices[value]

    def object(self, name: str) -> Fields:
        """Returns the members of an object within this one."""
        return Fields(self.required(name), self.path(name))

    def objects(self, name: str, *, limit: int = MAX_LIST_ENTRIES) -> Iterable[Fields]:
        """Yields the members of each object of a list; absent is none."""
        for index, value in enumerate(self.array(name, limit=limit)):
            yield Fields(value, self.path(f"{name}[{index}]"))

    def close(self) -> None:
        """Refuses members that were never asked for.

        Raises:
            InvalidFieldError: There is one.
        """
        for name in self._members:
            if name not in self._read:
                raise InvalidFieldError(self.path(name[:64]), "is no field of this message")

    def _is(self, kind: type[_Value], noun: str, name: str, value: Json) -> _Value:
        if not isinstance(value, kind):
            raise InvalidFieldError(self.path(name), f"must be {noun}")
        return value

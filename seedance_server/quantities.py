"""Sizes and times as people write them: ``4GiB``, ``1.5k``, ``30s``, ``1h30m``; read, and shown the same way.

What is shown reads back as the same value. It must not know which settings there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

__all__ = [
    "parse_bytes",
    "parse_milliseconds",
    "parse_seconds",
    "show_bytes",
    "show_milliseconds",
    "show_seconds",
]

_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", re.IGNORECASE)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*")
_TIME_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_TIME = re.compile(rf"(?:{_TIME_PART.pattern})+\s*")


def parse_bytes(text: str) -> int:
    """Reads a size as people write it: ``1048576``, ``512MiB``, ``4 GiB``, ``1.5g``.

    Raises:
        ValueError: If ``text`` isn't a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a size such as 512MiB or 4GiB, not {text!r}")
    return int(float(match[1]) * _BYTES[(match[2] or "").lower()])


def parse_seconds(text: str) -> float:
    """Reads a time: ``30`` and ``30s`` are the same, ``500ms``, ``1h30m``, ``2d``.

    Raises:
        ValueError: If ``text`` isn't a time.
    """
    return _parse_time(text, "s") / 1000


def parse_milliseconds(text: str) -> int:
    """Reads a time; a bare number is milliseconds, and what is finer is cut off.

    Raises:
        ValueError: If ``text`` isn't a time.
    """
    return int(_parse_time(text, "ms"))


def _parse_time(text: str, bare_unit: str) -> float:
    """Returns milliseconds."""
    if (number := _NUMBER.fullmatch(text)) is not None:
        return float(number[1]) * _MILLISECONDS[bare_unit]
    if _TIME.fullmatch(text) is None:
        raise ValueError(f"must be a time such as 500ms, 30s or 1h30m, not {text!r}")
    return sum(float(value) * _MILLISECONDS[unit] for value, unit in _TIME_PART.findall(text))


def show_bytes(size: int) -> str:
    """Writes a size in the largest unit that divides it."""
    number, unit = _largest(size, [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)])
    return f"{number}{unit}"


def show_seconds(time_s: float) -> str:
    """Writes a time in the largest unit that divides it."""
    milliseconds = time_s * 1000
    if milliseconds.is_integer():
        return show_milliseconds(int(milliseconds))
    return f"{Decimal(repr(time_s)):f}s"  # never 1e-05: nobody types that, and it isn't read


def show_milliseconds(time_ms: int) -> str:
    """Writes a time in the largest unit that divides it."""
    number, unit = _largest(time_ms, [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)])
    return f"{number}{unit or 'ms'}"


def _largest(value: int, units: Sequence[tuple[str, int]]) -> tuple[int, str]:
    for unit, size in units:
        if value and value % size == 0:
            return value // size, unit
    return value, ""

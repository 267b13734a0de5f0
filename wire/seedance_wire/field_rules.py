"""What any one field may hold: ranges, lengths, Unicode. Each complaint names the field by its path.

Which field has which range is `validity.py`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from .envelope import MAX_LIST_ENTRIES

__all__ = [
    "I64",
    "U32",
    "U64",
    "InvalidFieldError",
    "check_count",
    "check_number",
    "check_signed",
    "check_size",
    "check_text",
    "check_texts",
    "check_traceparent",
]

U32 = 2**32 - 1
"""The highest unsigned number of 32 bits."""

U64 = 2**64 - 1
"""The highest unsigned number of 64 bits."""

I64 = 2**63
"""One above the highest signed number of 64 bits."""

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class InvalidFieldError(ValueError):
    """A value that the protocol does not allow.

    Attributes:
        field: Path of the field within its message.
        reason: What is wrong, for people.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


def check_count(field: str, count: int, limit: int = MAX_LIST_ENTRIES) -> None:
    """Checks the length of a list; a codec asks before it builds the entries.

    Raises:
        InvalidFieldError: There are too many.
    """
    if count > limit:
        raise InvalidFieldError(field, f"must have at most {limit} entries, not {count}")


def check_number(field: str, value: int | None, low: int, high: int) -> None:
    """Checks that an integer, where there is one, is from ``low`` to ``high``.

    Raises:
        InvalidFieldError: It is not.
    """
    if value is not None and not low <= value <= high:
        raise InvalidFieldError(field, f"must be from {low} to {high}")


def check_text(field: str, value: str | None) -> None:
    """Checks that a text, where there is one, is Unicode.

    Raises:
        InvalidFieldError: It holds a surrogate.
    """
    if value is None or value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidFieldError(field, "holds a lone surrogate, which is no Unicode text") from None


def check_size(field: str, value: bytes, low: int, high: int) -> None:
    """Checks the length of bytes.

    Raises:
        InvalidFieldError: It is not from ``low`` to ``high``.
    """
    if not low <= len(value) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise InvalidFieldError(field, f"must have {wanted} bytes, not {len(value)}")


def check_texts(field: str, values: Iterable[str]) -> None:
    """Checks texts, each as `check_text` does.

    Raises:
        InvalidFieldError: One is wrong.
    """
    for index, value in enumerate(values):
        check_text(f"{field}[{index}]", value)


def check_signed(field: str, values: Collection[int]) -> None:
    """Checks that integers fit 64 bits with a sign.

    Raises:
        InvalidFieldError: One does not.
    """
    if not values or (min(values) >= -I64 and max(values) < I64):
        return
    for index, value in enumerate(values):
        if not -I64 <= value < I64:
            raise InvalidFieldError(f"{field}[{index}]", "does not fit 64 bits")


def check_traceparent(field: str, value: str | None) -> None:
    """Checks a trace's name as W3C Trace Context has it, all of it in lower-case hexadecimal digits."""
    if value is not None and not _TRACEPARENT.fullmatch(value):
        raise InvalidFieldError(field, "must be as W3C Trace Context has it: 00-<32 hex>-<16 hex>-<2 hex>")

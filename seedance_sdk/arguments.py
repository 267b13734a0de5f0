"""What a caller wrote, checked for its type and made what the wire wants; ranges are the server's to judge.

Each function takes the argument's name, for the error, and its value.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import SupportsIndex

from seedance_sdk.errors import InvalidRequest
from seedance_wire.messages import Durability, OnDisconnect

__all__ = [
    "MAX_DEADLINE_S",
    "biases",
    "choice",
    "integer",
    "integers",
    "json_text",
    "labels",
    "number",
    "request_key",
    "seconds",
    "text",
    "texts",
    "time_left",
    "truth",
    "wrong",
]

MAX_DEADLINE_S = 1e9
"""Thirty years: what has no deadline says none. Picked so that milliseconds fit every clock and encoding."""

_KEY_BYTES = (16, 64)
"""The protocol's."""


def wrong(name: str, wanted: str, value: object) -> TypeError:
    """The error for an argument of the wrong type."""
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def text(name: str, value: object) -> str:
    """A text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{name} holds a lone surrogate at character {error.start}, which no UTF-8 text can"
        raise InvalidRequest(message, field=name) from None
    return value


def number(name: str, value: object) -> float:
    """A number, NaN and infinities too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InvalidRequest(f"{name} is too large", field=name) from None


def integer(name: str, value: object) -> int:
    """An integer of 64 bits; NumPy's are welcome."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):  # NumPy's integers are welcome
        raise wrong(name, "an integer", value)
    whole = operator.index(value)
    if not -(2**63) <= whole < 2**63:
        raise InvalidRequest(f"{name} does not fit 64 bits", field=name)
    return whole


def truth(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong(name, "True or False", value)
    return value


def json_text(name: str, value: object) -> str:
    """JSON as text, or what becomes some."""
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{name} can't be written as JSON: {error}", field=name) from None
    return text(name, value)


def texts(name: str, value: object) -> tuple[str, ...]:
    """One text or several."""
    if isinstance(value, str):
        return (text(name, value),)
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray):
        raise wrong(name, "text or a list of texts", value)
    return tuple(text(name, item) for item in value)


def integers(name: str, value: object) -> tuple[int, ...]:
    """Several integers."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray):
        raise wrong(name, "a list of integers", value)
    return tuple(integer(name, item) for item in value)


def biases(name: str, value: object) -> dict[int, float]:
    """Token ids with a number each."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping from token id to bias", value)
    return {integer(name, token_id): number(name, bias) for token_id, bias in value.items()}


def seconds(name: str, value: object) -> float:
    """A time of more than nothing."""
    time_s = number(name, value)
    if not time_s > 0 or math.isnan(time_s):
        raise InvalidRequest(f"{name} must be more than 0 seconds", field=name)
    return time_s


def time_left(name: str, value: object) -> float:
    """A time that fits every clock."""
    left_s = seconds(name, value)
    if left_s > MAX_DEADLINE_S:
        raise InvalidRequest(f"{name} must be at most {MAX_DEADLINE_S:g} seconds", field=name)
    return left_s


def request_key(name: str, value: object) -> bytes:
    """An idempotency key: bytes as they are, a text by its SHA-256, so that it may be short and readable."""
    if isinstance(value, str):
        return hashlib.sha256(text(name, value).encode()).digest()
    if not isinstance(value, bytes):
        raise wrong(name, "text or bytes", value)
    if not _KEY_BYTES[0] <= len(value) <= _KEY_BYTES[1]:
        raise InvalidRequest(f"{name} must have 16 to 64 bytes, or be a text", field=name)
    return value


def labels(name: str, value: object) -> Mapping[str, object]:
    """What a caller wants to find again, as a mapping that nobody changes."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping", value)
    return MappingProxyType(dict(value))


def choice(
    kind: type[Durability | OnDisconnect],
) -> Callable[[str, object], Durability | OnDisconnect]:
    """Returns a check for one of the names of ``kind``."""

    def check(name: str, value: object) -> Durability | OnDisconnect:
        try:
            return kind(value)
        except ValueError:
            choices = ", ".join(repr(choice.value) for choice in kind)
            raise InvalidRequest(f"{name} must be one of {choices}, not {value!r}", field=name) from None

    return check

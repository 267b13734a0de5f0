"""Token ids as bytes: four to an id, little-endian, whatever the machine.

Not shorter, since a model's ids are spread over its whole vocabulary; not text, since prompts have thousands.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

__all__ = ["pack_token_ids", "unpack_token_ids"]

_CODE = "I"
assert array(_CODE).itemsize == 4, "this platform's C int has no four bytes"  # noqa: S101


def pack_token_ids(token_ids: Iterable[int]) -> bytes:
    """The bytes of ``token_ids``.

    Raises:
        ValueError: An id is negative or doesn't fit 32 bits.
    """
    try:
        ids = array(_CODE, token_ids)
    except OverflowError as error:
        raise ValueError(f"a token id must be from 0 to {2**32 - 1}") from error
    return _little_endian(ids).tobytes()


def unpack_token_ids(data: bytes) -> tuple[int, ...]:
    """The ids that `pack_token_ids` made ``data`` from.

    Raises:
        ValueError: The length is no multiple of four.
    """
    ids = array(_CODE)
    ids.frombytes(data)
    return tuple(_little_endian(ids))


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids

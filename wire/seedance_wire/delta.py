"""Code-point differences: the text encoding of DELTA frames (S10).

A text becomes, for each of its code points, the difference to the code point before it, zigzag-mapped (0, -1,
1, -2 … become 0, 1, 2, 3 …) and written as a little-endian base-128 varint. The *context* is the last code
point of the text before, so a difference can only be undone by a receiver that applied every frame since the
context was cleared. Lossless for every Unicode text; knows nothing of frames or streams.

Scripts outside ASCII sit close together: Hebrew and Cyrillic shrink from two bytes a character to one, much
of CJK from three to two. ASCII never shrinks, so it is never tried.
"""

from __future__ import annotations

from .errors import DecodeError, LocalProtocolError

__all__ = ["apply_difference", "context_after", "difference"]

_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_MAX_VARINT_BYTES = 4
"""A zigzag difference of two code points is below 2**22 and fits; anything longer is no difference."""


def context_after(text: str, context: int | None) -> int | None:
    """Returns the context after ``text``: its last code point, or the old context if it is empty."""
    return ord(text[-1]) if text else context


def difference(text: str, context: int) -> bytes:
    """Encodes ``text`` as differences, the first one to ``context``.

    Args:
        text: Whole code points.
        context: The last code point of the text before.

    Raises:
        LocalProtocolError: ``text`` holds a surrogate, which no Unicode text does.
    """
    encoded = bytearray()
    previous = context
    for code_point in map(ord, text):
        if code_point in _SURROGATES:
            raise LocalProtocolError("the text holds a lone surrogate")
        step = code_point - previous
        previous = code_point
        zigzag = step << 1 if step >= 0 else (-step << 1) - 1
        while zigzag > 0x7F:
            encoded.append(zigzag & 0x7F | 0x80)
            zigzag >>= 7
        encoded.append(zigzag)
    return bytes(encoded)


def apply_difference(encoded: bytes, context: int) -> str:
    """Undoes ``difference``.

    Args:
        encoded: What ``difference`` made.
        context: The same context as there.

    Raises:
        DecodeError: A varint is cut short, too long or not the shortest, or a result is no code point.
    """
    characters: list[str] = []
    code_point = context
    zigzag = shift = 0
    for byte in encoded:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift == 7 * _MAX_VARINT_BYTES:
                raise DecodeError("a difference is longer than any two code points are apart")
            continue
        if not byte and shift > 7:
            raise DecodeError("a difference is not in its shortest form")
        code_point += zigzag >> 1 if not zigzag & 1 else -((zigzag + 1) >> 1)
        if not 0 <= code_point <= _MAX_CODE_POINT or code_point in _SURROGATES:
            raise DecodeError("a difference leads outside Unicode")
        characters.append(chr(code_point))
        zigzag = shift = 0
    if shift:
        raise DecodeError("the last difference is cut short")
    return "".join(characters)

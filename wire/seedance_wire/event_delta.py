"""Reported events as field-wise differences to the event before, compressed together (S12).

Each event is four differences, one after the other:

    timestamp   signed difference
    user_id     signed difference
    action      characters of its UTF-8 shared with the one before, how many follow, those
    payload     bytes shared at its beginning, at its end, how many lie between, those

Numbers are little-endian base-128 varints, signed ones zigzag-mapped as in `delta.py`. Before the first event
all fields are 0 or empty. The first byte says what follows: 1 the differences, 2 a zstd frame of them.
A pure function of the events, so nothing is kept from one batch to the next and none depends on another.

What is read is bounded: the frame must state its size, and shared bytes count as often as they are used, or
a few bytes would unfold to gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import zstandard

from .errors import DecodeError, LocalProtocolError
from .user_event import UserEvent

__all__ = ["MAX_UNPACKED_BYTES", "pack_events", "unpack_events"]

MAX_UNPACKED_BYTES = 1_048_576
"""Of actions and payloads in one batch, and of its differences: four of the longest messages."""

_PLAIN, _ZSTD = 1, 2
_LEVEL = 3
_MAX_WINDOW_BYTES = 1_048_576


def pack_events(events: Sequence[UserEvent], *, compress: bool = True) -> bytes:
    """Returns events as differences, compressed if that is shorter.

    Args:
        events: In their order; their values are what the protocol allows.
        compress: Whether to try.

    Raises:
        LocalProtocolError: Their actions and payloads have more than `MAX_UNPACKED_BYTES`.
    """
    written = bytearray()
    timestamp = user_id = size = 0
    action = payload = b""
    for event in events:
        _write_signed(written, event.timestamp - timestamp)
        _write_signed(written, event.user_id - user_id)
        timestamp, user_id = event.timestamp, event.user_id
        next_action = event.action.encode()
        shared = _shared_start(action, next_action)
        _write(written, shared)
        _write(written, len(next_action) - shared)
        written += next_action[shared:]
        start = _shared_start(payload, event.payload)
        end = _shared_end(payload[start:], event.payload[start:])
        _write(written, start)
        _write(written, end)
        _write(written, len(event.payload) - start - end)
        written += event.payload[start : len(event.payload) - end]
        action, payload = next_action, event.payload
        size += len(action) + len(payload)
        if size > MAX_UNPACKED_BYTES:
            raise LocalProtocolError(f"events of more than {MAX_UNPACKED_BYTES} bytes in one batch")
    if compress:
        compressed = zstandard.ZstdCompressor(level=_LEVEL).compress(written)
        if len(compressed) < len(written):
            return bytes((_ZSTD,)) + compressed
    return bytes((_PLAIN,)) + written


def unpack_events(packed: bytes, limit: int) -> tuple[UserEvent, ...]:
    """Undoes `pack_events`.

    Args:
        packed: What it made.
        limit: Most events to read.

    Raises:
        DecodeError: It is no such thing, or holds more than is allowed.
    """
    reader = _Reader(_differences(packed))
    events: list[UserEvent] = []
    timestamp = user_id = size = 0
    action = payload = b""
    while not reader.at_end:
        if len(events) == limit:
            raise DecodeError(f"more than {limit} events")
        timestamp += reader.signed()
        user_id += reader.signed()
        action = reader.shared(action) + reader.taken()
        start = reader.shared(payload)
        end = reader.shared_end(payload, len(start))
        payload = start + reader.taken() + end
        size += len(action) + len(payload)
        if size > MAX_UNPACKED_BYTES:
            raise DecodeError(f"events of more than {MAX_UNPACKED_BYTES} bytes in one batch")
        try:
            text = action.decode()
        except UnicodeDecodeError:
            raise DecodeError("an action is not UTF-8") from None
        events.append(UserEvent(timestamp=timestamp, user_id=user_id, action=text, payload=payload))
    return tuple(events)


def _differences(packed: bytes) -> bytes:
    kind, content = packed[:1], packed[1:]
    if kind == bytes((_PLAIN,)):
        return content
    if kind != bytes((_ZSTD,)):
        raise DecodeError("packed events begin with 1 or 2")
    try:
        parameters = zstandard.get_frame_parameters(content)
        size = parameters.content_size
        if not 0 < size <= MAX_UNPACKED_BYTES or parameters.window_size > _MAX_WINDOW_BYTES:
            raise DecodeError(f"packed events unfold to 1 to {MAX_UNPACKED_BYTES} bytes, and say to how many")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        unfolded: bytes = decompressor.decompress(content, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DecodeError(f"not a zstd frame: {str(error)[:80]}") from None
    return unfolded


# ---- what is shared


def _shared_start(before: bytes, after: bytes) -> int:
    """How many bytes both begin with."""
    length = min(len(before), len(after))
    differing = int.from_bytes(before[:length]) ^ int.from_bytes(after[:length])
    return length - (differing.bit_length() + 7) // 8


def _shared_end(before: bytes, after: bytes) -> int:
    """How many bytes both end with."""
    length = min(len(before), len(after))
    if not length:
        return 0
    differing = int.from_bytes(before[-length:], "little") ^ int.from_bytes(after[-length:], "little")
    return length - (differing.bit_length() + 7) // 8


# ---- numbers


def _write(written: bytearray, number: int) -> None:
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)


def _write_signed(written: bytearray, number: int) -> None:
    _write(written, number << 1 if number >= 0 else (-number << 1) - 1)


class _Reader:
    """Reads differences from the first to the last."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._content)

    def number(self) -> int:
        number = shift = 0
        while True:
            if self._at == len(self._content):
                raise DecodeError("packed events are cut short")
            byte = self._content[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte <= 0x7F:
                break
            if shift > 63:
                raise DecodeError("a difference is too long")
        if not byte and shift > 7:
            raise DecodeError("a difference is not in its shortest form")
        return number

    def signed(self) -> int:
        number = self.number()
        return number >> 1 if not number & 1 else -((number + 1) >> 1)

    def shared(self, before: bytes) -> bytes:
        length = self.number()
        if length > len(before):
            raise DecodeError("more bytes are shared than there are")
        return before[:length]

    def shared_end(self, before: bytes, start: int) -> bytes:
        length = self.number()
        if length > len(before) - start:
            raise DecodeError("more bytes are shared than there are")
        return before[len(before) - length :]

    def taken(self) -> bytes:
        length = self.number()
        if length > len(self._content) - self._at:
            raise DecodeError("packed events are cut short")
        self._at += length
        return self._content[self._at - length : self._at]

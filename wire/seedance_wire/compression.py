"""zstd over whole WebSocket messages: one context for each direction of a connection (RFC 8878).

A sender begins a zstd frame with any message and ends it with any later one; in between each message is a
flushed part of it, so it can be read as soon as it is there and shares its past with those before. Outside of
a frame messages travel as they are. The reader needs no word about it: no envelope begins with the magic
number of a frame. Between frames neither side keeps anything, so an idle connection has no context.

A sender measures once whether its messages get shorter: it compresses the first ones beside sending them as
they are, and from then on does the one or the other. What is read is bounded in window, output and memory,
whatever it claims.
"""

from __future__ import annotations

import zstandard

from .errors import CloseCode, DecodeError, RemoteProtocolError

__all__ = ["MAX_WINDOW_BYTES", "TRIAL_MESSAGES", "Compressor", "Decompressor", "longest_packed"]

MAX_WINDOW_BYTES = 16_384
"""How far back a message may refer: a few thousand tokens. Larger windows made token streams no shorter."""

TRIAL_MESSAGES = 64
"""Messages before a sender decides, of which it measures the second half: a context has to fill first."""

_LEVEL = 3
_TABLE_LOG = 12
"""Of both match tables: 120 KB for a context, where level 3 alone takes 1.3 MB and compresses worse here."""
_MAGIC = b"\x28\xb5\x2f\xfd"
_SLICE_BYTES = 64
"""Input read at once. A block takes 4 bytes at least and unfolds to `MAX_WINDOW_BYTES` at most, so no slice
unfolds to more than 272 KiB before its output is counted."""
_OUTPUT_BYTES = 4096
"""What a decompressor's output is gathered in; a message of one step is far shorter."""


def longest_packed(size: int) -> int:
    """Returns how long a message of ``size`` bytes may be when it travels in a zstd frame.

    What can't be compressed gets longer: by 3 bytes a block, 10 for a frame's begin, 3 for a flush.
    """
    return size + size // 4096 + 64


class Compressor:
    """One direction of a connection, at its sender.

    Args:
        trial_messages: How many messages to decide after; 0 compresses from the first on.

    Attributes:
        is_on: Whether it was decided to compress; None while it is undecided.
    """

    def __init__(self, trial_messages: int = TRIAL_MESSAGES) -> None:
        self.is_on: bool | None = None if trial_messages else True
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._trial_messages = trial_messages
        self._tried = 0
        self._saved_bytes = 0  # in the second half of the trial

    def pack(self, message: bytes, *, last: bool) -> bytes:
        """Returns what is to be sent for a message; it must be sent, and in this order.

        Args:
            message: An envelope.
            last: Nothing is expected to follow for a while, so no context is kept behind it.
        """
        if self.is_on is False or (last and self._frame is None):
            return message
        packed = self._compress(message, last=last)
        if self.is_on:
            return packed
        self._tried += 1
        if 2 * self._tried > self._trial_messages:
            self._saved_bytes += len(message) - len(packed)
        if self._tried >= self._trial_messages:
            self.is_on = self._saved_bytes > 0
            self._frame = None
        return message

    def _compress(self, message: bytes, *, last: bool) -> bytes:
        if self._frame is None:
            self._frame = zstandard.ZstdCompressor(
                compression_params=zstandard.ZstdCompressionParameters.from_level(
                    _LEVEL,
                    source_size=MAX_WINDOW_BYTES,
                    window_log=MAX_WINDOW_BYTES.bit_length() - 1,
                    hash_log=_TABLE_LOG,
                    chain_log=_TABLE_LOG,
                    write_content_size=False,
                )
            ).compressobj()
        packed = self._frame.compress(message)
        if last:
            packed += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
            self._frame = None
        else:
            packed += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return packed


class Decompressor:
    """One direction of a connection, at its reader.

    Args:
        limit_bytes: Longest message to unfold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frame: zstandard.ZstdDecompressionObj | None = None

    @property
    def is_inside(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._frame is not None

    def unpack(self, data: bytes) -> bytes:
        """Returns the message that was sent as ``data``.

        Raises:
            DecodeError: It is no part of a zstd frame, or of one with too wide a window.
            RemoteProtocolError: It unfolds to more than the limit; ``close_code`` is 1009.
        """
        if self._frame is None:
            if not data.startswith(_MAGIC):
                return data
            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            self._frame = decompressor.decompressobj(write_size=_OUTPUT_BYTES)
        frame, unfolded = self._frame, bytearray()
        for start in range(0, len(data), _SLICE_BYTES):
            if frame.eof:
                raise DecodeError("bytes behind the end of a zstd frame")
            try:
                unfolded += frame.decompress(data[start : start + _SLICE_BYTES])
            except (zstandard.ZstdError, MemoryError) as error:
                raise DecodeError(f"not a zstd frame: {str(error)[:80]}") from None
            if len(unfolded) > self._limit_bytes:
                reason = f"a message that unfolds to over {self._limit_bytes} bytes"
                raise RemoteProtocolError(reason, CloseCode.MESSAGE_TOO_BIG)
        if frame.eof:
            if frame.unused_data:
                raise DecodeError("bytes behind the end of a zstd frame")
            self._frame = None
        return bytes(unfolded)

"""Memory for packed weights: large pieces on huge pages, filled from the front, given back all together.

A matrix of its own mapping would round up to 2 MiB; a hundred of them share a few large ones instead. A piece
is never given back alone: the weights of a model live and die together. Fresh memory costs more when it is
touched than packing does, since the system clears it and may have to fetch it from its host: what is known to
be wanted is touched beforehand, on a thread of its own.
"""

import ctypes
import threading
import weakref
from contextlib import suppress

from attrs import define, field

__all__ = ["WeightMemory"]

_PIECE_BYTES = 64 << 20  # a larger matrix gets its own; what the last piece leaves free is never touched
_ALIGNMENT = 64  # a cache line
_SPARE_SHARE = 8
"""What is reserved gets one part in this many more room, never touched: a packed matrix may be larger."""


@define(eq=False, slots=False)
class WeightMemory:
    """The memory of one model's packed weights; it lasts as long as this object.

    Args:
        library: The kernels.
        bits: Of each weight that is packed into it: 16 for bfloat16 as it is, or 8.
    """

    library: ctypes.CDLL
    bits: int = 16
    size_bytes: int = field(default=0, init=False)
    _next: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)
    _touching: threading.Thread | None = field(default=None, init=False)

    def reserve(self, size_bytes: int) -> None:
        """Have room for so much, and have it touched while the caller does something else: a wish, no need.

        Args:
            size_bytes: At most what will be taken: what is touched and not taken is wasted.
        """
        with suppress(MemoryError):  # whoever takes it will be told
            self._map(size_bytes + size_bytes // _SPARE_SHARE + _PIECE_BYTES)
            # The thread holds on to this object, and so to the memory that it writes.
            touch = threading.Thread(target=self._touch, args=(self._next, size_bytes), name="weights")
            touch.start()
            self._touching = touch

    def take(self, size_bytes: int) -> int:
        """The address of ``size_bytes`` zeroed bytes, aligned to a cache line.

        Raises:
            MemoryError: There isn't as much.
        """
        if self._touching is not None:
            self._touching.join()  # it writes zeros
            self._touching = None
        size_bytes = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._end - self._next < size_bytes:
            self._map(max(size_bytes, _PIECE_BYTES))
        address = self._next
        self._next += size_bytes
        self.size_bytes += size_bytes
        return address

    def _map(self, piece: int) -> None:
        address = self.library.seedance_map(piece)
        if not address:
            raise MemoryError(f"no {piece:,} bytes for packed weights")
        weakref.finalize(self, self.library.seedance_unmap, address, piece)
        self._next, self._end = address, address + piece

    def _touch(self, address: int, size_bytes: int) -> None:
        ctypes.memset(address, 0, size_bytes)  # one call, in which other threads run

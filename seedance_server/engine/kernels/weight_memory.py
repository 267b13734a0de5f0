"""Memory for packed weights: large pieces on huge pages, filled from the front, given back all together.

A matrix of its own mapping would round up to 2 MiB; a hundred of them share a few large ones instead. A piece
is never given back alone: the weights of a model live and die together.
"""

import ctypes
import weakref

from attrs import define, field

__all__ = ["WeightMemory"]

_PIECE_BYTES = 64 << 20  # a larger matrix gets its own; what the last piece leaves free is never touched
_ALIGNMENT = 64  # a cache line


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

    def take(self, size_bytes: int) -> int:
        """The address of ``size_bytes`` zeroed bytes, aligned to a cache line.

        Raises:
            MemoryError: There isn't as much.
        """
        size_bytes = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._end - self._next < size_bytes:
            piece = max(size_bytes, _PIECE_BYTES)
            address = self.library.seedance_map(piece)
            if not address:
                raise MemoryError(f"no {piece:,} bytes for packed weights")
            weakref.finalize(self, self.library.seedance_unmap, address, piece)
            self._next, self._end = address, address + piece
        address = self._next
        self._next += size_bytes
        self.size_bytes += size_bytes
        return address

"""Memory that a step's inputs pass on their way to a device: allocated once, filled in place, used in turn.

There are two rooms, for this step and the one before. The invariant: a room isn't written to again before the
device has passed all work that was queued while it was in use, so no copy and no kernel reads what a later
step wrote. The event that says so is recorded when the next step begins. It must not know what is sent.
"""

from collections.abc import Callable
from typing import Any, Protocol

from attrs import define, field
from torch import Tensor

__all__ = ["Event", "Staging"]

_FIRST_BYTES = 1 << 16
"""A room's first size. Ids, positions and block tables of 128 rows take less; what takes more doubles it."""
_ALIGNMENT = 256
"""Where a tensor begins: what CUDA's own allocator gives, so that kernels read it as fast."""


class Event(Protocol):
    """A point on a device's time line."""

    def record(self, stream: Any = None) -> None:
        """Be the point that the stream has been given work up to."""

    def synchronize(self) -> None:
        """Wait until the device has passed it; at once where it was never recorded."""


@define(eq=False)
class _Room:
    """A host's and a device's memory of one size.

    Attributes:
        passed: When the device has passed it, nothing reads the room any more.
        used: Bytes taken in this step.
        outgrown: Smaller ones that this step used before it needed more.
    """

    passed: Event
    host: Tensor
    device: Tensor
    used: int = 0
    outgrown: list[Tensor] = field(factory=list)


class Staging:
    """Two rooms in turn.

    Args:
        allocate: Makes so many bytes on the host, from where the device can copy by itself, and as many on
            the device.
        copy: Queues the copy of a host's tensor into a device's.
        make_event: Makes an event.
        stream: The stream on which all that reads what was put here is queued.
    """

    def __init__(
        self,
        allocate: Callable[[int], tuple[Tensor, Tensor]],
        copy: Callable[[Tensor, Tensor], None],
        make_event: Callable[[], Event],
        stream: Any,
    ) -> None:
        self._allocate = allocate
        self._copy = copy
        self._stream = stream
        self._room, self._other = (_Room(make_event(), *allocate(_FIRST_BYTES)) for _ in range(2))

    def turn(self) -> None:
        """Begin a step: what was put before the one that ends now may be overwritten. May wait for it."""
        self._room.passed.record(self._stream)
        self._room, self._other = self._other, self._room
        self._room.passed.synchronize()
        self._room.used = 0
        self._room.outgrown.clear()

    def put(self, tensor: Tensor) -> Tensor:
        """Queue the copy of a host's tensor.

        Returns:
            The same on the device, until the turn after the next.
        """
        room, size = self._room, tensor.nbytes
        start = -(-room.used // _ALIGNMENT) * _ALIGNMENT
        if start + size > len(room.host):
            room.outgrown += (room.host, room.device)
            room.host, room.device = self._allocate(2 * (start + size))
        room.used = start + size
        here, there = (
            part[start : start + size].view(tensor.dtype).view(tensor.shape)
            for part in (room.host, room.device)
        )
        here.copy_(tensor)
        self._copy(here, there)
        return there

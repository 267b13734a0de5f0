"""The seam between the engine and a device's streams: where work is queued, copied and timed.

On CUDA the model runs on one compute stream and inputs travel from pinned memory on one copy stream, ordered
by events; nothing uses the default stream. On a CPU the same calls do the work at once. The engine is written
against `Streams` alone, so the tests on a CPU run the code that a GPU runs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

__all__ = ["CpuStreams", "CudaStreams", "Streams", "open_streams"]


class Streams(Protocol):
    """What the engine asks of a device. All calls come from the engine's thread."""

    def compute(self) -> AbstractContextManager[Any]:
        """Make the compute stream current for the calling thread."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device; work queued on the compute stream afterwards sees it."""

    def mark(self) -> Any:
        """A point on the compute stream's time line."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds of device time from one mark to another, once the device has passed both."""


class CpuStreams:
    """Streams of a device whose work is done when the call returns.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def compute(self) -> AbstractContextManager[None]:
        """Nothing to make current."""
        return nullcontext()

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself: it is where it is used."""
        return tensor

    def mark(self) -> float:
        """Now."""
        return self._clock()

    def seconds_between(self, start: float, end: float) -> float:
        """The difference."""
        return end - start


class CudaStreams:
    """One compute and one copy stream of a CUDA device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._compute = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device

    def compute(self) -> AbstractContextManager[Any]:
        """Make the compute stream current."""
        stream: AbstractContextManager[Any] = torch.cuda.stream(self._compute)
        return stream

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy through pinned memory; the compute stream waits for the copy stream, the host for neither."""
        with torch.cuda.stream(self._copy):
            there = tensor.pin_memory().to(self._device, non_blocking=True)
        self._compute.wait_stream(self._copy)
        # The allocator may reuse the memory only when the compute stream, too, is done with it.
        there.record_stream(self._compute)
        return there

    def mark(self) -> torch.cuda.Event:
        """An event on the compute stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._compute)
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Waits until the device has passed ``end``."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def open_streams(device: torch.device, clock: Callable[[], float]) -> Streams:
    """The streams of ``device``; ``clock`` times those that have no events."""
    return CudaStreams(device) if device.type == "cuda" else CpuStreams(clock)

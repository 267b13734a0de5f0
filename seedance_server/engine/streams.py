"""The seam between the engine and a device's streams: where work is queued, copied, recorded and timed.

On CUDA the model runs on one compute stream and inputs travel from pinned memory on one copy stream, ordered
by events; nothing uses the default stream. On a CPU the same calls do the work at once. The engine is written
against `Streams` alone, so the tests on a CPU run the code that a GPU runs. The host waits for a device in
three places only: for a room of `staging.py`, for what it downloads, and for the time of a mark.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, Protocol

import torch
from attrs import frozen

from seedance_server.engine.collector import paused_collector
from seedance_server.engine.device_errors import is_lack_of_memory
from seedance_server.engine.errors import CaptureFailed
from seedance_server.engine.staging import Event, Staging

__all__ = ["CpuStreams", "CudaStreams", "Graph", "Streams", "open_streams"]


_ALIGNMENT = 16
"""Where a downloaded tensor begins: any number of any type may."""


class Graph(Protocol):
    """Work that was recorded once, to be queued again as one."""

    def replay(self) -> None:
        """Queue it on the current stream: the same kernels, on what the same memory holds by then."""


class Streams(Protocol):
    """What the engine asks of a device. All calls come from the engine's thread."""

    def compute(self) -> AbstractContextManager[Any]:
        """Make the compute stream current for the calling thread."""

    def begin_step(self) -> None:
        """Begin a step: what was uploaded in the last but one may be overwritten from now on."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device; work queued on the compute stream afterwards sees it.

        Returns:
            The copy, until the end of the next step.
        """

    def download(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copy a device's tensors to the host and wait for them, once; within `compute`.

        Returns:
            The copies, until the next call.
        """

    def capture(self, work: Callable[[], object]) -> Graph:
        """Do some work once, then record it; within `compute`.

        Args:
            work: Neither waits for the device nor reads what the host changes; all that it reads and all that
                it leaves behind lies where it lay before the call.

        Raises:
            CaptureFailed: The device doesn't let this work be recorded. It can still be done.
            RuntimeError: There is no room for it (see `is_lack_of_memory`).
        """

    def mark(self) -> Any:
        """A point on the compute stream's time line."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds of device time from one mark to another, once the device has passed both."""


@frozen(eq=False)
class _Recorded:
    """A graph's twin on a CPU: does the work again, on the same memory."""

    replay: Callable[[], object]


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

    def begin_step(self) -> None:
        """Nothing to wait for."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself: it is where it is used."""
        return tensor

    def download(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors themselves."""
        return tensors

    def capture(self, work: Callable[[], object]) -> Graph:
        """The work itself, done once as everywhere."""
        work()
        return _Recorded(work)  # type: ignore[return-value]  # a field in the place of a method

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
        cuda: PyTorch's interface to it.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device = device
        self._compute = cuda.Stream(device)
        self._copy = cuda.Stream(device)
        # The model came to the device on another stream, and may still be on its way.
        self._compute.wait_stream(cuda.current_stream(device))
        self._staging = Staging(self._allocate, self._send, cuda.Event, self._compute)
        self._landed: Event = cuda.Event()
        self._landing = self._pinned(0)
        self._graph_pool: Any = None  # one for all graphs, which never run at the same time

    def compute(self) -> AbstractContextManager[Any]:
        """Make the compute stream current."""
        stream: AbstractContextManager[Any] = self._cuda.stream(self._compute)
        return stream

    def begin_step(self) -> None:
        """Waits until the device has passed the last step but one, as it has long since."""
        self._staging.turn()

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy through pinned memory; the compute stream waits for the copy stream, the host for neither."""
        return self._staging.put(tensor)

    def download(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copy into pinned memory, side by side, and wait for one event behind it all."""
        ends = list(accumulate(-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors))
        if len(self._landing) < ends[-1]:
            self._landing = self._pinned(2 * ends[-1])
        copies = []
        for tensor, start in zip(tensors, (0, *ends), strict=False):
            room = self._landing[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            copies.append(room.copy_(tensor, non_blocking=True))
        self._landed.record(self._compute)
        self._landed.synchronize()
        return tuple(copies)

    def capture(self, work: Callable[[], object]) -> Graph:
        """Record a CUDA graph on the compute stream, in memory that only graphs use."""
        work()  # libraries set themselves up at the first call, which can't be recorded
        graph: Graph = self._cuda.CUDAGraph()
        if self._graph_pool is None:
            self._graph_pool = self._cuda.graph_pool_handle()
        # What other threads do with CUDA, such as asking how busy it is, must not spoil it: thread_local.
        recording = self._cuda.graph(
            graph, pool=self._graph_pool, stream=self._compute, capture_error_mode="thread_local"
        )
        first: RuntimeError | None = None
        try:
            # A graph of an engine that is gone may be garbage: to destroy it would spoil this recording.
            with paused_collector(), recording:
                try:
                    work()
                except RuntimeError as error:
                    first = error  # the recording is ended all the same, and that may fail over this one
                    raise
        except RuntimeError as error:
            self._graph_pool = None  # some versions of PyTorch take it to be in use from here on
            cause = first or error
            if is_lack_of_memory(cause):
                raise cause from None
            raise CaptureFailed(str(cause).splitlines()[0]) from cause
        return graph

    def mark(self) -> torch.cuda.Event:
        """An event on the compute stream."""
        event: torch.cuda.Event = self._cuda.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Waits until the device has passed ``end``."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def _allocate(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        there = torch.empty(size, dtype=torch.uint8, device=self._device)
        # It may be memory that work queued on another stream still reads.
        self._copy.wait_stream(self._cuda.current_stream(self._device))
        return self._pinned(size), there

    def _pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _send(self, here: torch.Tensor, there: torch.Tensor) -> None:
        with self._cuda.stream(self._copy):
            there.copy_(here, non_blocking=True)
        self._compute.wait_stream(self._copy)


def open_streams(device: torch.device, clock: Callable[[], float]) -> Streams:
    """The streams of ``device``; ``clock`` times those that have no events.

    For CUDA cuDNN's attention is turned off, in the whole process. On an H100 or H200 PyTorch prefers it
    (pytorch/pytorch#162073), and it makes a plan for each exact set of shapes and strides, on the host (see
    modelscope/FunASR#3704); those of steps that aren't recorded change all the time. Where shapes recur its
    kernels may be the faster. This is from reading, not measured here.
    """
    if device.type != "cuda":
        return CpuStreams(clock)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return CudaStreams(device)

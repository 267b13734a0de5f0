"""PyTorch's interface to CUDA as far as `CudaStreams` uses it, over a CPU: the twin of a GPU for tests.

A graph is what it is on a GPU: the operations that were queued while it recorded, with the very tensors and
numbers that they were given. A replay runs them again and puts each result where the first one lay. So what
a recording takes from the host stays as it was then, and what it reads must still be there. An operation that
would have the host wait for the device is refused while recording, as CUDA does, and can be counted.
"""

import gc
from collections import Counter
from contextlib import contextmanager

import torch
from attrs import define, field
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FakeCuda", "HostReads"]

WAITING = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::equal",
    "aten::repeat_interleave.Tensor",
    "aten::lift_fresh",  # a tensor made of the host's numbers: its copy to a GPU waits
}
_ENDED_BADLY = "CUDA error: operation failed due to a previous error during capture\nmore"
INDEXING = {"aten::index.Tensor", "aten::index_put_", "aten::index_put"}


def _waits(func, args):
    """Whether the host would wait for a GPU; an index of booleans is counted there first."""
    if func.name() in INDEXING:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return func.name() in WAITING


class HostReads(TorchDispatchMode):
    """Counts the operations that would have a host wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _waits(func, args):
            self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _waits(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func.name()}\nmore")
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        return result


@define(eq=False)
class FakeGraph:
    calls: list = field(factory=list)

    def replay(self):
        for func, args, kwargs, first in self.calls:
            result = func(*args, **kwargs)
            for before, after in zip(_tensors(first), _tensors(result), strict=True):
                if before.data_ptr() != after.data_ptr():
                    before.copy_(after)


def _tensors(result):
    several = result if isinstance(result, tuple | list) else (result,)
    return [each for each in several if isinstance(each, torch.Tensor)]


@define(eq=False)
class FakeStream:
    cuda: "FakeCuda"
    number: int

    def wait_stream(self, other):
        self.cuda.log.append(("wait", self.number, other.number))


@define(eq=False)
class FakeEvent:
    cuda: "FakeCuda"
    recorded_s: float = 0.0

    def record(self, stream=None):
        self.cuda.log.append(("record", stream.number))
        self.cuda.time_s += 0.001
        self.recorded_s = self.cuda.time_s

    def synchronize(self):
        self.cuda.log.append(("synchronize",))

    def elapsed_time(self, other):
        return 1000 * (other.recorded_s - self.recorded_s)


@define
class FakeCuda:
    """Attributes: log of what streams were told, why recording is refused, the memory of each that wasn't,
    the streams that were made current, the innermost last."""

    log: list = field(factory=list)
    refuses: str | None = None
    time_s: float = 0.0
    graphs: list = field(factory=list)
    pools: list = field(factory=list)
    made_pools: int = 0
    current: list = field(factory=list)
    _streams: list = field(factory=list)

    def Stream(self, device):  # noqa: N802
        self._streams.append(FakeStream(self, len(self._streams) + 1))
        return self._streams[-1]

    def Event(self, enable_timing=False):  # noqa: N802
        return FakeEvent(self)

    def current_stream(self, device):
        return self.current[-1] if self.current else FakeStream(self, 0)

    @contextmanager
    def stream(self, stream):
        self.current.append(stream)
        yield
        self.current.pop()

    def graph_pool_handle(self):
        self.made_pools += 1
        return self.made_pools

    def CUDAGraph(self):  # noqa: N802
        self.graphs.append(FakeGraph())
        return self.graphs[-1]

    @contextmanager
    def graph(self, graph, *, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        assert stream.number % 2 == 1, "the compute stream is made first"
        if self.refuses:
            raise RuntimeError(self.refuses)
        assert not gc.isenabled(), "what the collector destroys may be a graph, which spoils a recording"
        self.pools.append(pool)
        try:
            with _Recorder(graph.calls):
                yield
        except RuntimeError:
            # PyTorch ends the recording all the same, and that fails over what made it fail.
            raise RuntimeError(_ENDED_BADLY)  # noqa: B904 - its context is all that tells, as there

import gc
from contextlib import nullcontext

import pytest
import torch

from seedance_server.engine import streams as streams_module
from seedance_server.engine.errors import CaptureFailed
from seedance_server.engine.streams import CpuStreams, CudaStreams, open_streams
from tests.engine.fake_cuda import FakeCuda

CPU = torch.device("cpu")


def test_cpu_streams_time_by_the_clock_they_were_given():
    """Stage timing follows the injected clock, so tests decide what it says."""
    times = iter([10.0, 12.5])
    streams = open_streams(CPU, lambda: next(times))
    with streams.compute():
        assert streams.seconds_between(streams.mark(), streams.mark()) == 2.5


def test_cuda_streams_are_opened_without_cudnn_s_attention(monkeypatch):
    """Its plans are for exact shapes, which steps that aren't recorded hardly ever have twice."""
    monkeypatch.setattr(streams_module, "CudaStreams", lambda device: None)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        open_streams(CPU, lambda: 0.0)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        open_streams(torch.device("cuda"), lambda: 0.0)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_cpu_streams_leave_tensors_where_they_are():
    """On a CPU a copy to the device or back costs nothing."""
    tensor = torch.arange(3)
    streams = CpuStreams(lambda: 0.0)
    streams.begin_step()
    assert streams.upload(tensor) is tensor
    assert streams.download(tensor)[0] is tensor


def _streams(kind):
    return CpuStreams(lambda: 0.0) if kind == "cpu" else CudaStreams(CPU, FakeCuda())


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_streams_replay_work_on_what_its_memory_holds_by_then(kind):
    """A recording reads and writes the places that it was made with; the host fills them in between."""
    streams = _streams(kind)
    inputs, outputs = torch.tensor([1, 2]), torch.zeros(2, dtype=torch.int64)
    runs = []

    def work():
        runs.append(None)
        outputs.copy_(inputs * 10)

    graph = streams.capture(work)
    assert runs, "libraries set themselves up in a first run"
    inputs.copy_(torch.tensor([3, 4]))
    outputs.fill_(-1)
    graph.replay()
    assert outputs.tolist() == [30, 40]


def test_cuda_streams_say_when_work_can_t_be_recorded():
    """A device that refuses is no reason to stop: the message is a line, and typed."""
    streams = CudaStreams(CPU, FakeCuda(refuses="CUDA error: operation not supported\nmore"))
    with pytest.raises(CaptureFailed, match=r"not supported$"):
        streams.capture(lambda: None)


def test_cuda_streams_record_in_other_memory_after_a_failure():
    """PyTorch may believe for ever that the failed one still fills its memory; all others share theirs."""
    cuda = FakeCuda()
    streams = CudaStreams(CPU, cuda)
    for refuses in (None, None, "CUDA error: no", None):
        cuda.refuses = refuses
        with nullcontext() if refuses is None else pytest.raises(CaptureFailed):
            streams.capture(lambda: None)
    assert cuda.pools == [1, 1, 2]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory\nmore")]
)
def test_cuda_streams_let_memory_run_out_under_its_own_name(error):
    """A smaller recording may do, where a refused one never does."""
    streams = CudaStreams(CPU, FakeCuda())
    ran = []

    def work():
        if ran:
            raise error
        ran.append(None)

    with pytest.raises(type(error)) as caught:
        streams.capture(work)
    assert caught.value is error


def test_cuda_streams_say_what_went_wrong_first():
    """Ending a failed recording fails too, and says nothing of why; nor does what was amiss before it."""
    streams = CudaStreams(CPU, FakeCuda())
    ran = []
    error = RuntimeError("CUDA error: no such thing while capturing\nmore")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory.")

    def work():
        if ran:
            raise error
        ran.append(None)

    with pytest.raises(CaptureFailed, match=r"no such thing while capturing$"):
        streams.capture(work)


def test_cuda_streams_collect_no_garbage_while_they_record():
    """An engine of before that is destroyed meanwhile would destroy its graphs, which CUDA refuses."""
    enabled = []
    CudaStreams(CPU, FakeCuda()).capture(lambda: enabled.append(gc.isenabled()))
    assert enabled == [True, False]
    assert gc.isenabled()


def test_cuda_streams_order_a_copy_before_the_work_that_reads_it():
    """The compute stream waits for the copy stream, and the host for neither."""
    cuda = FakeCuda()
    streams = CudaStreams(CPU, cuda)
    cuda.log.clear()
    assert streams.upload(torch.tensor([5])).tolist() == [5]
    assert cuda.log == [("wait", 1, 2)]


def test_cuda_streams_wait_for_a_download_alone():
    """One event behind one copy; what comes back is the host's own until the next."""
    cuda = FakeCuda()
    streams = CudaStreams(CPU, cuda)
    cuda.log.clear()
    numbers, bools, ids = torch.tensor([[1.5], [2.5]]), torch.tensor([True]), torch.tensor([2**40])
    here = streams.download(numbers, bools, ids)
    assert [each.tolist() for each in here] == [[[1.5], [2.5]], [True], [2**40]]
    assert cuda.log == [("record", 1), ("synchronize",)]
    assert streams.download(torch.tensor([7]))[0].tolist() == [7]


def test_cuda_streams_wait_for_what_brought_the_model():
    """Weights may still be on their way on another stream when the engine is made."""
    cuda = FakeCuda()
    CudaStreams(CPU, cuda)
    assert ("wait", 1, 0) in cuda.log


def test_cuda_streams_time_by_events_on_the_compute_stream():
    """Stage times are the device's own."""
    cuda = FakeCuda()
    streams = CudaStreams(CPU, cuda)
    start, end = streams.mark(), streams.mark()
    assert streams.seconds_between(start, end) == pytest.approx(0.001)

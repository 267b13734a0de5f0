import pytest
import torch

from seedance_server.engine.streams import CpuStreams, open_streams

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_cpu_streams_time_by_the_clock_they_were_given():
    """Stage timing follows the injected clock, so tests decide what it says."""
    times = iter([10.0, 12.5])
    streams = open_streams(torch.device("cpu"), lambda: next(times))
    with streams.compute():
        assert streams.seconds_between(streams.mark(), streams.mark()) == 2.5


def test_cpu_streams_leave_tensors_where_they_are():
    """On a CPU an upload costs nothing."""
    tensor = torch.arange(3)
    assert CpuStreams(lambda: 0.0).upload(tensor) is tensor


@needs_cuda
def test_cuda_streams_order_a_copy_before_the_work_that_reads_it():
    """What is queued after an upload sees the data, though the host waited for nothing."""
    device = torch.device("cuda")
    streams = open_streams(device, lambda: 0.0)
    tensor = torch.arange(1_000_000)
    with streams.compute():
        start = streams.mark()
        total = streams.upload(tensor).sum()
        end = streams.mark()
    assert int(total) == int(tensor.sum())
    assert streams.seconds_between(start, end) > 0

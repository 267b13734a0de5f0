"""Streams, pinned rooms and recordings of a real device."""

import pytest
import torch

from seedance_server.engine.device_errors import device_errors
from seedance_server.engine.errors import CaptureFailed, DeviceFailed, OutOfDeviceMemory
from seedance_server.engine.streams import open_streams


@pytest.fixture
def streams(device):
    return open_streams(device, lambda: 0.0)


def test_work_sees_what_was_uploaded_before_it(streams):
    """What is queued after an upload sees the data, though the host waited for nothing."""
    tensor = torch.arange(1_000_000)
    with streams.compute():
        start = streams.mark()
        total = streams.upload(tensor).sum()
        end = streams.mark()
        assert int(streams.download(total)[0]) == int(tensor.sum())
    assert streams.seconds_between(start, end) > 0


def test_a_step_s_inputs_stay_until_the_device_has_read_them(streams, device):
    """A host many steps ahead of a slow device overwrites nothing that is still to be read."""
    seen = []
    with streams.compute():
        slow = torch.randn(2048, 2048, device=device)
        for step in range(30):
            streams.begin_step()
            there = streams.upload(torch.full((50_000,), step))
            for _ in range(10):
                slow = (slow @ slow).clamp_(-1, 1)
            seen.append(there.sum() + (slow.sum() * 0).long())
        sums = [int(streams.download(each)[0]) for each in seen]
    assert sums == [50_000 * step for step in range(30)]


def test_a_recording_runs_on_what_its_memory_holds_by_then(streams, device):
    """A replay reads and writes the places that it was recorded with."""
    with torch.inference_mode(), streams.compute():
        inputs, outputs = torch.arange(4, device=device), torch.zeros(4, dtype=torch.int64, device=device)
        graph = streams.capture(lambda: outputs.copy_(inputs * 10))
        inputs.fill_(7)
        outputs.fill_(-1)
        graph.replay()
        assert streams.download(outputs)[0].tolist() == [70] * 4


def test_work_that_waits_for_the_device_is_not_recorded_and_does_no_harm(streams, device):
    """After a recording was refused, the same work still runs, and others can be recorded."""
    with streams.compute():
        numbers = torch.arange(4, device=device)
        with pytest.raises(CaptureFailed):
            streams.capture(lambda: int(numbers.max()))
        assert int(numbers.max()) == 3
        graph = streams.capture(lambda: numbers.add_(1))
        graph.replay()
        assert streams.download(numbers)[0].tolist() == [2, 3, 4, 5]  # once before it was recorded, once now


def test_lack_of_memory_has_its_own_name_and_passes(streams, device):
    """A smaller step may do: the device goes on."""
    with pytest.raises(OutOfDeviceMemory), device_errors():
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    assert int(torch.ones(3, device=device).sum()) == 3


def test_what_else_cuda_says_is_a_failed_device():
    """The message's form is PyTorch's: this is how it begins in the version at hand."""
    with pytest.raises(DeviceFailed), device_errors():
        torch.cuda.set_device(torch.cuda.device_count())

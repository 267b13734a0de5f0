"""Staging, over a device that does its work late."""

import weakref

import pytest
import torch
from attrs import define, field

from seedance_server.engine.staging import Staging


@define
class LateDevice:
    """Copies and reads nothing until an event is waited for: then all that was queued up to it."""

    done: int = 0
    queue: list = field(factory=list)
    allocated: list = field(factory=list)

    def allocate(self, size):
        self.allocated.append(size)
        return torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)

    def copy(self, here, there):
        self.queue.append(lambda: there.copy_(here))

    def work_until(self, place):
        while self.done < place:
            self.queue[self.done]()
            self.done += 1

    def event(self):
        return LateEvent(self)


@define
class LateEvent:
    device: LateDevice
    place: int = 0

    def record(self, stream=None):
        assert stream == "compute"
        self.place = len(self.device.queue)

    def synchronize(self):
        self.device.work_until(self.place)


def _staging(device):
    return Staging(device.allocate, device.copy, device.event, "compute")


def test_staging_keeps_each_step_s_inputs_until_the_device_has_read_them():
    """The host runs ahead of the device; nothing that is still to be read may be written over."""
    device = LateDevice()
    staging = _staging(device)
    seen = []
    for step in range(5):
        staging.turn()
        there = staging.put(torch.tensor([step, step + 10]))
        device.queue.append(lambda there=there: seen.append(there.tolist()))
    device.work_until(len(device.queue))
    assert seen == [[step, step + 10] for step in range(5)]


def test_staging_lets_the_host_be_a_step_ahead():
    """Where the device has a step to do, the host prepares the next: it waits for the last but one only."""
    device = LateDevice()
    staging = _staging(device)
    for _ in range(2):
        staging.turn()
        staging.put(torch.tensor([1]))
    assert device.done == 0
    staging.turn()
    assert device.done == 1


def test_staging_allocates_nothing_once_it_is_large_enough():
    """Pinned memory is dear to allocate: a step's inputs are filled in."""
    device = LateDevice()
    staging = _staging(device)
    for _ in range(6):
        staging.turn()
        for _ in range(3):
            staging.put(torch.ones(20_000, dtype=torch.int64))
    assert len(device.allocated) <= 6
    grown = len(device.allocated)
    for _ in range(6):
        staging.turn()
        for _ in range(3):
            staging.put(torch.ones(20_000, dtype=torch.int64))
    assert len(device.allocated) == grown


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.tensor([True, False]),
        torch.tensor(1.5, dtype=torch.float64),
        torch.tensor([0.5], dtype=torch.bfloat16),
        torch.empty(0, 4),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_staging_brings_any_tensor_over_as_it_is(tensor):
    """Shapes and types are the caller's; each begins where the device reads it fast."""
    device = LateDevice()
    staging = _staging(device)
    staging.turn()
    staging.put(torch.tensor([True]))
    there = staging.put(tensor)
    device.work_until(len(device.queue))
    assert there.dtype == tensor.dtype
    assert torch.equal(there, tensor)
    assert there.storage_offset() * there.element_size() % 256 == 0


@torch.inference_mode()  # as steps run: a view doesn't keep its base
def test_staging_lets_go_of_outgrown_memory_only_when_it_is_read():
    """Nothing else may be given the memory that a queued copy still goes to."""
    device = LateDevice()
    staging = _staging(device)
    staging.turn()
    staging.put(torch.tensor([7]))
    small = weakref.ref(staging._room.device)
    staging.put(torch.ones(100_000, dtype=torch.int64))
    staging.turn()
    assert small() is not None
    staging.turn()
    device.queue.clear()
    assert small() is None


def test_staging_keeps_what_it_gave_out_when_it_grows_within_a_step():
    """The larger room must not take the smaller one's place before that was read."""
    device = LateDevice()
    staging = _staging(device)
    staging.turn()
    first = staging.put(torch.tensor([7]))
    staging.put(torch.ones(100_000, dtype=torch.int64))
    device.work_until(len(device.queue))
    assert first.tolist() == [7]

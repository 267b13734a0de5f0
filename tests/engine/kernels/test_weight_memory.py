import ctypes
import gc
import weakref

import pytest

from seedance_server.engine.kernels.weight_memory import WeightMemory


class _Maps:
    """Stands for the library: counts what is mapped."""

    def __init__(self, *, empty=False):
        self.live, self.empty = {}, empty

    def seedance_map(self, size):
        if self.empty:
            return None
        address = 1 << 30 if not self.live else max(self.live) + (1 << 30)
        self.live[address] = size
        return address

    def seedance_unmap(self, address, size):
        assert self.live.pop(address) == size


def test_small_matrices_share_a_piece_and_large_ones_have_their_own():
    """Each matrix on huge pages of its own would waste half of them."""
    maps = _Maps()
    memory = WeightMemory(maps)
    first, second = memory.take(100), memory.take(1 << 20)
    assert second == first + 128, "the next cache line"
    assert len(maps.live) == 1
    large = memory.take(200 << 20)
    assert maps.live[large] == 200 << 20
    assert memory.size_bytes == 128 + (1 << 20) + (200 << 20)


def test_all_pieces_are_given_back_with_the_last_user():
    """A model that is let go of leaves nothing behind."""
    maps = _Maps()
    memory = WeightMemory(maps)
    memory.take(1)
    memory.take(65 << 20)
    del memory
    gc.collect()
    assert maps.live == {}


def test_reserved_memory_is_touched_before_any_of_it_is_taken(memory):
    """Whoever packs meets no page for the first time, and nobody writes zeros over what was packed."""
    memory.reserve(8 << 20)
    touching = memory._touching
    addresses = [memory.take(1 << 20) for _ in range(8)]
    assert not touching.is_alive()
    assert addresses == list(range(addresses[0], addresses[0] + (8 << 20), 1 << 20)), "one piece holds all"
    ctypes.memset(addresses[0], 7, 8 << 20)
    assert memory.take(1 << 20) == addresses[-1] + (1 << 20), "and a little more"
    assert ctypes.string_at(addresses[0], 8 << 20) == bytes([7]) * (8 << 20)


def test_reserved_memory_outlives_who_asked_for_it_until_it_is_touched(memory):
    """A model that is refused meanwhile leaves nothing behind, and no thread that writes where nothing is."""
    memory = WeightMemory(memory.library)
    memory.reserve(32 << 20)
    touching, gone = memory._touching, weakref.ref(memory)
    del memory
    touching.join()
    del touching
    gc.collect()
    assert gone() is None


def test_lack_of_memory_is_told():
    """A null address must never become a weight's."""
    with pytest.raises(MemoryError, match="67,108,864 bytes"):
        WeightMemory(_Maps(empty=True)).take(1)
    memory = WeightMemory(_Maps(empty=True))
    memory.reserve(1)  # only who takes some is told
    with pytest.raises(MemoryError):
        memory.take(1)


def test_mapped_memory_is_zeroed_and_aligned(memory):
    """Panels are read in whole cache lines, and columns beyond the last are zeros."""
    address = memory.take(1000)
    assert address % (2 << 20) == 0, "a huge page begins here"
    assert ctypes.string_at(address, 1000) == bytes(1000)
    assert memory.take(10) % 64 == 0

import gc

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


def test_lack_of_memory_is_told():
    """A null address must never become a weight's."""
    with pytest.raises(MemoryError, match="67,108,864 bytes"):
        WeightMemory(_Maps(empty=True)).take(1)


def test_mapped_memory_is_zeroed_and_aligned(memory):
    """Panels are read in whole cache lines, and columns beyond the last are zeros."""
    import ctypes

    address = memory.take(1000)
    assert address % (2 << 20) == 0, "a huge page begins here"
    assert ctypes.string_at(address, 1000) == bytes(1000)
    assert memory.take(10) % 64 == 0

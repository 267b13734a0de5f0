import pytest
import torch

from seedance_server.engine.config import EngineConfig
from seedance_server.engine.errors import InsufficientMemory, KvPoolTooSmall
from seedance_server.engine.kv_cache import KvGeometry
from seedance_server.engine.pool_size import pool_blocks

GEOMETRY = KvGeometry((None,), heads=1, key_dim=4, value_dim=4, dtype=torch.float32)
BLOCK = GEOMETRY.block_bytes(16)  # 512 bytes


def _blocks(available, **settings):
    return pool_blocks(GEOMETRY, EngineConfig(max_sequences=4, **settings), 160, available)


@pytest.mark.parametrize(
    ("given", "available", "blocks"),
    [
        (None, 20 * BLOCK, 10),
        (None, 21 * BLOCK, 10),
        (7 * BLOCK, 8 * BLOCK, 7),
        (8 * BLOCK, 8 * BLOCK, 8),
        (None, 2**40, 40),
        (2**39, 2**40, 40),
    ],
)
def test_pool_gets_what_it_is_given_or_half_of_what_there_is(given, available, blocks):
    """And never more than all sequences at their longest could use."""
    assert _blocks(available, kv_memory_bytes=given) == blocks


def test_pool_larger_than_the_memory_is_refused_with_both_numbers():
    """The operator asked for it by name."""
    with pytest.raises(InsufficientMemory) as caught:
        _blocks(9 * BLOCK, kv_memory_bytes=10 * BLOCK)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (10 * BLOCK, 9 * BLOCK)


def test_pool_too_small_for_a_prompt_is_refused_with_both_numbers():
    """Two blocks hold the shortest sequence of use."""
    with pytest.raises(KvPoolTooSmall) as caught:
        _blocks(9 * BLOCK, kv_memory_bytes=BLOCK)
    assert (caught.value.needed_bytes, caught.value.given_bytes) == (2 * BLOCK, BLOCK)


def test_memory_too_small_for_half_of_it_to_be_a_pool_is_named_whole():
    """The numbers are those of the machine: what must be free, and what is."""
    with pytest.raises(InsufficientMemory) as caught:
        _blocks(3 * BLOCK)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (4 * BLOCK, 3 * BLOCK)

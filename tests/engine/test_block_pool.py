import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.block_pool import BlockPool, blocks_for
from tests.engine_strategies import block_rings


def test_pool_grows_a_table_by_what_is_missing():
    """Blocks are allocated on demand: as many as the tokens need, once."""
    pool = BlockPool(total=8, block_size=4)
    table = pool.new_table()
    assert pool.reserve(table, 5)
    first = list(table.groups[0])
    assert pool.reserve(table, 8)
    assert (table.groups[0], pool.used_blocks) == (first, 2)
    assert pool.reserve(table, 9)
    assert (table.groups[0][:2], pool.used_blocks) == (first, 3)


def test_pool_leaves_all_as_it_was_when_blocks_do_not_suffice():
    """A reservation is all or nothing, over all groups."""
    pool = BlockPool(total=5, block_size=4, rings=(None, 2))
    table = pool.new_table()
    assert pool.reserve(table, 8)
    before = [list(group) for group in table.groups]
    assert not pool.reserve(table, 16)
    assert [list(group) for group in table.groups] == before
    assert pool.free_blocks == 1


def test_pool_stops_growing_a_ring_when_it_is_closed():
    """A window's group holds its window and no more, however long the sequence."""
    pool = BlockPool(total=100, block_size=4, rings=(None, 3))
    table = pool.new_table()
    assert pool.reserve(table, 200)
    assert [len(group) for group in table.groups] == [50, 3]


@pytest.mark.parametrize(
    ("total", "rings", "capacity"), [(10, (None,), 40), (10, (None, 3), 28), (5, (3,), 2**63 - 1)]
)
def test_pool_knows_the_longest_sequence_that_fits(total, rings, capacity):
    """The capacity decides which requests are refused at the door."""
    assert BlockPool(total=total, block_size=4, rings=rings).capacity_tokens == capacity


@pytest.mark.slow
@given(st.integers(0, 60), st.integers(1, 8), block_rings)
def test_pool_capacity_is_exact_for_every_shape(total, block_size, rings):
    """At its capacity a sequence fits, one token more and it doesn't."""
    pool = BlockPool(total=total, block_size=block_size, rings=rings)
    capacity = pool.capacity_tokens
    assert blocks_for(capacity, block_size, rings) <= total
    if capacity < 2**63 - 1:
        assert blocks_for(capacity + 1, block_size, rings) > total


@given(block_rings, st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 60)), max_size=40))
def test_pool_never_gives_a_block_twice(rings, operations):
    """Whatever is reserved and released, free + used == total and each used block has one owner."""
    pool = BlockPool(total=24, block_size=4, rings=rings)
    tables = [pool.new_table() for _ in range(4)]
    for index, tokens in operations:
        if tokens is None:
            pool.release(tables[index])
        else:
            fits = pool.blocks_for(tokens) - tables[index].size <= pool.free_blocks
            assert pool.reserve(tables[index], tokens) == fits
        pool.check_integrity(tables)
        assert pool.free_blocks + sum(table.size for table in tables) == pool.total


def test_pool_integrity_fails_when_a_block_has_two_owners():
    """The check can fail."""
    pool = BlockPool(total=4, block_size=4)
    table = pool.new_table()
    pool.reserve(table, 4)
    with pytest.raises(AssertionError, match="0 blocks stand"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="1 blocks stand"):
        pool.check_integrity([table, table])


@pytest.mark.parametrize(
    "corrupt",
    [
        pytest.param(lambda pool, _: pool._free.pop(), id="a free block is lost"),
        pytest.param(lambda pool, _: pool._free.append(pool._free[0]), id="a block is free twice"),
        pytest.param(lambda pool, table: pool._free.append(table.groups[0][0]), id="free and held"),
        pytest.param(lambda pool, _: pool._cache._names.popitem(), id="a name is lost"),
        pytest.param(lambda pool, _: pool._cache._idle.popitem(), id="an idle block is lost"),
        pytest.param(lambda _, table: table.groups[0].pop(), id="a table lost a block"),
        pytest.param(lambda _, table: table.groups[0].append(7), id="a table took a block"),
    ],
)
def test_pool_integrity_sees_every_corruption(corrupt):
    """One block that is lost, or stands somewhere twice, is enough, wherever it is."""
    pool = BlockPool(total=8, block_size=4, windows=(None,))
    held, ended = pool.new_table(), pool.new_table()
    for number, table in enumerate((held, ended)):
        pool.reserve(table, 8)
        pool.record(table, 0, bytes([number]))
    pool.release(ended)
    assert (pool.used_blocks, pool.idle_blocks) == (2, 1)
    pool.check_integrity([held])
    corrupt(pool, held)
    with pytest.raises(AssertionError):
        pool.check_integrity([held])

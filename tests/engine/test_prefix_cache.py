import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.prefix_cache import PrefixCache, extend_keys
from tests.engine_strategies import chunk_sizes, picks, pool_shapes, repetitive_texts, sessions


def keys_of(text, tenant="", block_size=2):
    keys = []
    extend_keys(keys, tenant, text, block_size, len(text) // block_size)
    return keys


def test_keys_name_a_block_with_all_that_comes_before_it():
    """The same tokens behind others have other keys and values, and so another name."""
    assert keys_of([1, 2, 3, 4])[0] == keys_of([1, 2, 9, 9])[0]
    assert keys_of([1, 2, 3, 4])[1] != keys_of([5, 6, 3, 4])[1]
    assert len(set(keys_of([7, 7] * 10))) == 10


def test_keys_of_one_tenant_are_none_of_another():
    """Nobody learns, by an answer's speed, what another tenant has asked."""
    assert not set(keys_of(range(20), "a")) & set(keys_of(range(20), "b"))


def test_keys_are_the_same_however_they_are_extended():
    """A sequence's keys grow with it."""
    keys = []
    for blocks in (1, 3, 4):
        extend_keys(keys, "a", list(range(9)), 2, blocks)
    assert keys == keys_of(range(9), "a")


def named(cache, *blocks):
    for block in blocks:
        cache.name(0, b"%d" % block, block)
        assert cache.put(block)


def test_cache_gives_up_what_was_idle_longest():
    """What was used lately is likely to be used again."""
    cache = PrefixCache(1)
    named(cache, 1, 2, 3)
    cache.take(1)
    cache.put(1)
    assert [cache.evict() for _ in range(3)] == [2, 3, 1]
    assert cache.find(0, b"1") is None
    assert cache.check_integrity() == set()


def test_cache_keeps_the_newest_turn_of_a_session_until_its_time_is_over():
    """Between two turns of a conversation others come and go; what they leave goes first."""
    cache = PrefixCache(1)
    named(cache, 1, 2)
    cache.keep("chat", [1, 2], until_s=10.0)
    named(cache, 3)
    assert cache.evict() == 3
    named(cache, 4)
    cache.expire(9.9)
    cache.keep("chat", [2], until_s=20.0)  # its newer turn began otherwise
    cache.expire(10.0)
    assert [cache.evict(), cache.evict()] == [4, 1]
    named(cache, 5)
    cache.expire(20.0)
    assert [cache.evict(), cache.evict()] == [5, 2]


def test_cache_gives_up_what_is_kept_when_there_is_nothing_else():
    """Keeping never costs a running sequence its blocks."""
    cache = PrefixCache(1)
    named(cache, 1, 2, 3)
    cache.keep("old", [1, 3], until_s=10.0)
    cache.keep("new", [2, 3], until_s=11.0)
    assert [cache.evict() for _ in range(3)] == [1, 2, 3]
    assert cache.check_integrity() == set()


class ReuseMachine(RuleBasedStateMachine):
    """Any history of sequences that begin alike: no block is lost, or written while others read it, and each
    sequence reads what its own tokens wrote.

    A naive model of the memory says what each block really holds: which position of which text.
    """

    @initialize(shape=pool_shapes)
    def start(self, shape):
        self.block_size, self.chunk = shape["block_size"], shape["longest_chunk"]
        windows = shape["windows"]
        rings = tuple(None if w is None else (w + self.chunk - 3) // self.block_size + 2 for w in windows)
        self.pool = BlockPool(shape["blocks"], self.block_size, rings, windows)
        self.memory = {}  # (group, block, offset) -> the text up to there
        self.live = []  # [text, table, computed, keys]
        self.now_s = 0.0

    @rule(text=repetitive_texts)
    def open(self, text):
        text = text[: self.pool.capacity_tokens]
        if not text:
            return
        keys = keys_of(text, block_size=self.block_size)[: (len(text) - 1) // self.block_size]
        keys = keys[: self.pool.find_prefix(keys)]
        table = self.pool.new_table()
        if self.pool.open(table, len(text), keys):
            self.live.append([text, table, len(keys) * self.block_size, len(keys)])
        else:
            assert self.pool.free_blocks < self.pool.blocks_for(len(text))
            assert table.size == 0

    @precondition(lambda self: self.live)
    @rule(pick=picks, size=chunk_sizes)
    def compute(self, pick, size):
        sequence = self.live[pick % len(self.live)]
        text, table, computed, recorded = sequence
        stop = min(len(text), computed + min(size, self.chunk))
        if not self.pool.begin(table, computed, stop):
            return
        for position in range(computed, stop):
            for place in self.places(table, position):
                self.memory[place] = tuple(text[: position + 1])
        for position in range(computed, stop):
            for group, window in enumerate(self.pool.windows):
                first = 0 if window is None else max(0, position - window + 1)
                for seen in range(first, position + 1):
                    assert self.memory[self.places(table, seen)[group]] == tuple(text[: seen + 1])
        keys = keys_of(text, block_size=self.block_size)
        for block in range(recorded, stop // self.block_size):
            self.pool.record(table, block, keys[block])
        sequence[2:] = [stop, stop // self.block_size]

    def places(self, table, position):
        """Where each group has a position: block and offset."""
        block, offset = divmod(position, self.block_size)
        return [
            (group, entries[block if ring is None else block % ring], offset)
            for group, (entries, ring) in enumerate(zip(table.groups, self.pool.rings, strict=True))
        ]

    @precondition(lambda self: self.live)
    @rule(pick=picks, session=sessions)
    def close(self, pick, session):
        _, table, _, _ = self.live.pop(pick % len(self.live))
        if session:
            self.pool.keep(("", session), table, self.now_s + 2)
        self.pool.release(table)

    @rule()
    def wait(self):
        self.now_s += 1
        self.pool.expire(self.now_s)

    @invariant()
    def books_are_right(self):
        if hasattr(self, "pool"):
            self.pool.check_integrity(table for _, table, _, _ in self.live)

    def teardown(self):
        if hasattr(self, "pool"):
            for _, table, _, _ in self.live:
                self.pool.release(table)
            assert self.pool.free_blocks == self.pool.total


ReuseMachine.TestCase.settings = settings(stateful_step_count=40)
TestReuseMachine = pytest.mark.slow(ReuseMachine.TestCase)

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from seedance_server.engine.kernels.attention import PagedRows, attend_paged, pages_of
from seedance_server.engine.kernels.structures import Reach

# The result is rounded to bfloat16 once (2^-9), probabilities and sums are float32.
TOLERANCE = {"rtol": 2**-7, "atol": 2**-8}


class _Cache:
    """Two groups of layers over one plane: full attention, and a ring of blocks for a window."""

    def __init__(self, lengths, *, window, block_size=4, heads=2, key_dim=24, value_dim=40, chunk=64, seed=0):
        self.random = torch.Generator().manual_seed(seed)
        self.lengths, self.window, self.block_size = lengths, window, block_size
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.rings = (None, -(-(window - 1 + chunk) // block_size))
        counts = [-(-length // block_size) for length in lengths]
        rings = [min(count, self.rings[1]) for count in counts]
        free = torch.randperm(sum(counts) + sum(rings), generator=self.random).tolist()
        self.tables = [[[free.pop() for _ in range(n)] for n in group] for group in (counts, rings)]
        slots = (sum(counts) + sum(rings)) * block_size
        # What no row has written is NaN: reading it would show.
        self.keys = torch.full((slots, heads, key_dim), torch.nan, dtype=torch.bfloat16)
        self.values = torch.full((slots, heads, value_dim), torch.nan, dtype=torch.bfloat16)

    def tensor(self, *shape):
        return torch.randn(*shape, generator=self.random).bfloat16()

    def attend(self, group, spans, query, key, value):
        rows = PagedRows.of(spans, self.tables, rings=self.rings, block_size=self.block_size)
        reach = Reach(group, self.window if group else 0, 0.25)
        return attend_paged(rows, reach, pages_of(self.keys, self.values), query, key, value)


def _expected(query, key, value, position, window):
    first = max(0, position + 1 - window) if window else 0
    seen = slice(first, position + 1)
    shared = query.shape[0] // key.shape[1]
    keys, values = (part[seen].double().repeat_interleave(shared, 1).transpose(0, 1) for part in (key, value))
    return scaled_dot_product_attention(query.double()[:, None], keys, values, scale=0.25)[:, 0]


@given(data=st.data())
def test_attention_is_torch_s_for_any_rows_of_any_sequences(library, data):
    """Prompts cut anywhere, decodes beside them, windows, grouped heads, odd widths: twin within rounding."""
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    cache = _Cache(
        lengths,
        window=data.draw(st.integers(1, 20)),
        block_size=data.draw(st.sampled_from([1, 3, 16])),
        heads=data.draw(st.integers(1, 2)),
        key_dim=data.draw(st.sampled_from([8, 31, 32, 80])),
        value_dim=data.draw(st.sampled_from([8, 17, 64, 80])),
    )
    query_heads = cache.heads * data.draw(st.sampled_from([1, 2, 3, 4, 5, 7]))
    whole = [
        (
            cache.tensor(length, query_heads, cache.key_dim),
            cache.tensor(length, cache.heads, cache.key_dim),
            cache.tensor(length, cache.heads, cache.value_dim),
        )
        for length in lengths
    ]
    group = data.draw(st.integers(0, 1))
    done = [0] * len(lengths)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        counts = [data.draw(st.integers(0, length - at)) for at, length in zip(done, lengths, strict=True)]
        counts = [count or int(at < length) for count, at, length in zip(counts, done, lengths, strict=True)]
        spans = list(zip(done, counts, strict=True))
        parts = [
            torch.cat([each[part][at : at + count] for each, (at, count) in zip(whole, spans, strict=True)])
            for part in range(3)
        ]
        found = iter(cache.attend(group, spans, *parts))
        for (query, key, value), (at, count) in zip(whole, spans, strict=True):
            for position in range(at, at + count):
                wanted = _expected(query[position], key, value, position, cache.window if group else 0)
                torch.testing.assert_close(next(found).double(), wanted, **TOLERANCE)
        done = [at + count for at, count in spans]


def test_row_is_the_same_bits_alone_and_among_others(library):
    """Neighbours, chunks and the number of threads change nothing."""
    lengths = [70, 33, 50]
    query = [torch.randn(n, 8, 64, generator=torch.Generator().manual_seed(n)).bfloat16() for n in lengths]
    key, value = ([torch.randn_like(part[:, :2]) for part in query] for _ in range(2))

    def run(spans_of_steps, group):
        cache = _Cache(lengths, window=19, key_dim=64, value_dim=64, chunk=70)
        out = [[], [], []]
        for spans in spans_of_steps:
            parts = (
                torch.cat([each[at : at + n] for each, (at, n) in zip(whole, spans, strict=True)])
                for whole in (query, key, value)
            )
            found = cache.attend(group, spans, *parts).split([n for _, n in spans])
            for rows, part in zip(out, found, strict=True):
                rows.append(part)
        return [torch.cat(rows) for rows in out]

    at_once = [[(0, n) for n in lengths]]
    chunked = [[(min(at, n), max(0, min(7, n - at))) for n in lengths] for at in range(0, 70, 7)]
    singles = [[(min(at, n), int(at < n)) for n in lengths] for at in range(70)]
    before = torch.get_num_threads()
    for group in (0, 1):
        first = run(at_once, group)
        for threads, steps in ((1, chunked), (2, singles), (3, at_once)):
            torch.set_num_threads(threads)
            try:
                again = run(steps, group)
            finally:
                torch.set_num_threads(before)
            assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_rows_are_laid_out_in_the_order_of_their_sequences():
    """The kernel finds each row's sequence and position, and each sequence's table, where it expects them."""
    rows = PagedRows.of([(5, 1), (2, 3)], [[[4, 1], [2]], [[0], [3]]], rings=(None, 7), block_size=4)
    assert list(rows.sequences) == [0, 1, 1, 1]
    assert list(rows.positions) == [5, 2, 3, 4]
    assert (rows.step.rows, rows.step.sequences, rows.step.block_size) == (4, 2, 4)
    blocks, starts, rings = (list(each) for each in rows._kept)
    assert (blocks, starts, rings) == ([4, 1, 2, 0, 3], [0, 2, 3, 4], [0, 7])


def test_wrong_shapes_never_reach_the_kernel(library):
    """C++ believes what it is told: a wrong size would read beyond the end."""
    cache = _Cache([4], window=2)
    good = {
        "query": cache.tensor(4, 4, 24),
        "key": cache.tensor(4, 2, 24),
        "value": cache.tensor(4, 2, 40),
    }
    assert cache.attend(0, [(0, 4)], **good).shape == (4, 4, 40)
    for name, wrong in (
        ("query", cache.tensor(3, 4, 24)),
        ("query", cache.tensor(4, 3, 24)),
        ("key", cache.tensor(4, 2, 24).float()),
        ("value", cache.tensor(4, 2, 24)),
    ):
        with pytest.raises(ValueError, match=r"are wanted|can't share"):
            cache.attend(0, [(0, 4)], **good | {name: wrong})
    with pytest.raises(ValueError, match="can't be read"):
        pages_of(cache.keys.float(), cache.values)

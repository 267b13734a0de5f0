import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine import kv_cache
from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.kv_cache import KvCache, KvGeometry
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.streams import CpuStreams
from tests.engine_strategies import chunk_lengths

CPU = torch.device("cpu")
WINDOWS = (5, None, 5, None, 5)
HEADS, SHARED, KEY_DIM, VALUE_DIM = 2, 3, 8, 4
LONGEST_CHUNK = 16


def _geometry(windows=WINDOWS):
    return KvGeometry(windows, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM, dtype=torch.float32)


def _cache(blocks=400, block_size=4, windows=WINDOWS, geometry=None):
    return KvCache(
        geometry or _geometry(windows),
        total_blocks=blocks,
        block_size=block_size,
        longest_chunk=LONGEST_CHUNK,
        device=CPU,
        streams=CpuStreams(lambda: 0.0),
    )


def _sequence(pool, order, tokens):
    request = GenerationRequest(id=order, prompt_ids=(0,) * tokens, params=SamplingParams(), arrival_s=0.0)
    return Sequence(request, order=order, seed=0, limit=tokens + 1, table=pool.new_table())


@pytest.mark.parametrize(
    ("windows", "planes", "groups", "places"),
    [
        ((None, None), 2, (None,), ((0, 0), (0, 1))),
        ((5, None, 5, None), 2, (None, 5), ((1, 0), (0, 0), (1, 1), (0, 1))),
        ((5, 5, None), 1, (None, 5, 5), ((1, 0), (2, 0), (0, 0))),
        (
            (5, 5, 5, None, 5, 5, None),
            2,
            (None, 5, 5, 5),
            ((1, 0), (1, 1), (2, 0), (0, 0), (2, 1), (3, 0), (0, 1)),
        ),
    ],
)
def test_geometry_gives_every_layer_a_place_of_its_own(windows, planes, groups, places):
    """Layers of one kind fill groups of equal size, so that one pool serves all kinds."""
    geometry = _geometry(windows)
    assert (geometry.planes, geometry.groups, geometry.places) == (planes, groups, places)
    assert len(set(geometry.places)) == len(windows)


def test_geometry_gives_a_window_a_ring_for_itself_and_the_longest_chunk():
    """Rows are written before they are read, so a chunk mustn't reach a block of the window before it."""
    assert _geometry((None, 5)).rings(block_size=4, longest_chunk=1) == (None, 2)
    assert _geometry((None, 5)).rings(block_size=4, longest_chunk=2) == (None, 3)
    assert _geometry((None, 5)).rings(block_size=4, longest_chunk=5) == (None, 3)
    assert _geometry((None, 5)).rings(block_size=4, longest_chunk=6) == (None, 4)
    assert _geometry((None, 5)).rings(block_size=1, longest_chunk=6) == (None, 10)


def test_geometry_counts_the_bytes_that_the_cache_allocates():
    """What is promised to fit is what is allocated."""
    cache = _cache(blocks=7)
    allocated = sum(plane.nbytes for plane in cache.keys + cache.values)
    assert allocated == 7 * _geometry().block_bytes(4)


def _attend_alone(query, key, value, position, window):
    """The definition, for one row: softmax over what it may see."""
    seen = slice(max(0, position - window + 1) if window else 0, position + 1)
    keys = key[seen].repeat_interleave(SHARED, dim=1)
    values = value[seen].repeat_interleave(SHARED, dim=1)
    weights = torch.einsum("hd,thd->ht", query, keys).mul(0.3).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, values)


@pytest.fixture(autouse=True, scope="module")
def _short_reads_differ_in_size():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "_SMALLEST_SIZE", 8)
        yield


@pytest.mark.slow
@given(
    st.lists(chunk_lengths(LONGEST_CHUNK), min_size=1, max_size=4),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 99),
)
def test_cache_gives_every_row_the_attention_of_its_own_sequence(lengths, block_size, seed):
    """Whatever sequences stand side by side, in whatever chunks, each row sees its own past and no more."""
    generator = torch.Generator().manual_seed(seed)
    cache = _cache(block_size=block_size)
    for plane in cache.keys + cache.values:
        plane.fill_(float("nan"))  # whatever is read without having been written shows
    pool = BlockPool(total=400, block_size=block_size, rings=cache.rings)
    sequences = [_sequence(pool, order, sum(chunks)) for order, chunks in enumerate(lengths)]
    history = [
        [
            torch.randn(sum(chunks), heads, dim, generator=generator)
            for heads, dim in ((HEADS * SHARED, KEY_DIM), (HEADS, KEY_DIM), (HEADS, VALUE_DIM))
        ]
        for chunks in lengths
    ]
    pending = [list(chunks) for chunks in lengths]
    while any(pending):
        batch = Batch.of(
            Chunk.of(s, chunks.pop(0)) for s, chunks in zip(sequences, pending, strict=True) if chunks
        )
        for chunk in batch.chunks:
            assert pool.reserve(chunk.sequence.table, chunk.start + chunk.count)
        rows = [(c.sequence.order, p) for c in batch.chunks for p in range(c.start, c.start + c.count)]
        step = cache.plan(batch)
        for layer, window in enumerate(WINDOWS):
            # One row of padding behind, as the runner adds it.
            query, key, value = (
                torch.stack([history[order][part][p] for order, p in [*rows, rows[0]]]).transpose(0, 1)[None]
                for part in range(3)
            )
            out = step.attend(layer, query, key, value, scaling=0.3, window=window)
            expected = [_attend_alone(history[o][0][p], *history[o][1:], p, window) for o, p in rows]
            torch.testing.assert_close(out[0, :-1], torch.stack(expected), rtol=1e-4, atol=1e-5)
            assert out[0, -1].abs().max() == 0
        for chunk in batch.chunks:
            chunk.sequence.computed += chunk.count


def test_rows_that_read_little_are_not_padded_to_those_that_read_much():
    """One long conversation doesn't make every short answer read as much."""
    cache = _cache(blocks=300)
    pool = BlockPool(total=300, block_size=4, rings=cache.rings)
    chunks = []
    for order, tokens in enumerate((7, 300, 3, 310)):
        sequence = _sequence(pool, order, tokens)
        assert pool.reserve(sequence.table, tokens)
        sequence.computed = tokens - 1
        chunks.append(Chunk.of(sequence, 1))
    kind = cache.plan(Batch.of(chunks))._groups[0][0]  # of the layers without a window
    assert [(read.rows.tolist(), read.length) for read in kind.singles] == [([0, 2], 64), ([1, 3], 320)]
    slots = [
        cache._slots(torch.tensor([[chunk.sequence.table.groups[0]]]), torch.tensor([[chunk.start]]), None)
        for chunk in chunks
    ]
    assert kind.write[0].tolist() == torch.cat(slots).flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mask_is_finite_in_base_two_too(dtype):
    """Kernels that raise 2 to a power multiply by log2(e): -inf would make a block masked whole a NaN."""
    geometry = KvGeometry(WINDOWS, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM, dtype=dtype)
    mask = _cache(geometry=geometry)._mask(torch.tensor([True, False])) * math.log2(math.e)
    assert mask.isfinite().tolist() == [True, True]
    assert mask[1].exp2() == 0

import pytest
import torch

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.kv_cache import KvCache, KvGeometry
from seedance_server.engine.native_cache import NativeKvCache
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.streams import CpuStreams

GEOMETRY = KvGeometry((None, 8, None, 8), heads=2, key_dim=16, value_dim=32, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def _needs_kernels():
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))


class _Rig:
    """A cache of either kind with its pool and sequences of some lengths."""

    def __init__(self, kind, lengths):
        sizes = {"total_blocks": 60, "block_size": 4, "longest_chunk": 16}
        self.cache = kind(GEOMETRY, **sizes, device=torch.device("cpu"), streams=CpuStreams(lambda: 0.0))
        pool = BlockPool(total=60, block_size=4, rings=self.cache.rings)
        self.sequences = []
        for n, length in enumerate(lengths):
            ids = tuple(range(1, length + 1))
            request = GenerationRequest(id=n, prompt_ids=ids, params=SamplingParams(), arrival_s=0.0)
            sequence = Sequence(request, order=n, seed=0, limit=512, table=pool.new_table())
            assert pool.reserve(sequence.table, length)
            self.sequences.append(sequence)

    @torch.inference_mode()
    def attend(self, counts, layer, seed):
        """One step of so many rows of each sequence through one layer, its numbers drawn by all that."""
        parts = [(each, n) for each, n in zip(self.sequences, counts, strict=True) if n]
        batch = Batch.of(Chunk.of(sequence, count) for sequence, count in parts)
        random = torch.Generator().manual_seed(100 * seed + layer)
        query, key, value = (
            torch.randn(1, heads, batch.tokens, dim, generator=random).bfloat16()
            for heads, dim in ((6, 16), (2, 16), (2, 32))
        )
        return self.cache.plan(batch).attend(
            layer, query, key, value, scaling=None, window=GEOMETRY.windows[layer]
        )

    def advance(self, counts):
        for sequence, count in zip(self.sequences, counts, strict=True):
            sequence.computed += count


def test_native_cache_attends_as_its_torch_twin_does():
    """Same rows, same blocks, rings that have gone round: the same numbers within one bfloat16 rounding."""
    rigs = [_Rig(kind, (41, 7, 20)) for kind in (NativeKvCache, KvCache)]
    for seed, counts in enumerate([(16, 7, 1), (9, 0, 1), (1, 0, 9), (15, 0, 9)]):
        for layer in range(4):
            found, expected = (rig.attend(counts, layer, seed) for rig in rigs)
            torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-7)
        for rig in rigs:
            rig.advance(counts)


def test_native_cache_reads_the_planes_that_the_engine_counts():
    """It keeps what `KvCache` keeps, where that keeps it."""
    cache = _Rig(NativeKvCache, ()).cache
    assert [(page.keys, page.values) for page in cache.pages] == [
        (keys.data_ptr(), values.data_ptr()) for keys, values in zip(cache.keys, cache.values, strict=True)
    ]

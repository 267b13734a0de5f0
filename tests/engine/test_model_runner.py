import pytest
import torch

from seedance_server.engine.attention import STEP_ARGUMENT
from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.errors import OutOfDeviceMemory
from seedance_server.engine.kv_cache import KvCache
from seedance_server.engine.model_runner import ModelRunner
from seedance_server.engine.padding import USUAL, Padding
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.streams import CpuStreams
from tests.tiny_models import KINDS


class _Rig:
    """A runner with a pool; sequences get their blocks as they are made."""

    def __init__(self, loaded, padding=USUAL):
        streams = CpuStreams(lambda: 0.0)
        sizes = {"total_blocks": 200, "block_size": 4, "longest_chunk": 64}
        cache = KvCache(loaded.geometry, **sizes, device=loaded.device, streams=streams)
        self.pool = BlockPool(total=200, block_size=4, rings=cache.rings)
        self.runner = ModelRunner(loaded, cache, streams, padding=padding)

    def sequence(self, ids):
        request = GenerationRequest(id=0, prompt_ids=tuple(ids), params=SamplingParams(), arrival_s=0.0)
        sequence = Sequence(request, order=0, seed=0, limit=512, table=self.pool.new_table())
        assert self.pool.reserve(sequence.table, len(ids))
        return sequence

    @torch.inference_mode()
    def run(self, *parts):
        """One batch of (sequence, tokens)."""
        batch = Batch.of(Chunk.of(sequence, count) for sequence, count in parts)
        logits = self.runner.run(batch)
        for chunk in batch.chunks:
            chunk.sequence.computed += chunk.count
        return logits


@pytest.mark.parametrize("kind", KINDS)
def test_runner_gives_the_stock_model_s_logits_for_packed_chunks(kind, load_tiny, stock_tiny):
    """Rows of several sequences side by side come to what the stock model computes for each alone."""
    rig = _Rig(load_tiny(kind))
    prompts = [list(range(3, 43)), [7], list(range(200, 230))]
    sequences = [rig.sequence(prompt) for prompt in prompts]
    first = rig.run((sequences[0], 23), (sequences[1], 1))
    second = rig.run((sequences[0], 17), (sequences[2], 30))
    with torch.inference_mode():
        expected = [stock_tiny(kind)(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in prompts]
    # The single token's row comes first; the chunk that doesn't reach its prompt's end brings no logits.
    torch.testing.assert_close(first, expected[1][None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, torch.stack([expected[0], expected[2]]), rtol=1e-4, atol=1e-4)


def test_runner_brings_no_logits_when_no_chunk_ends_its_prompt(load_tiny):
    """The first chunk of a long prompt has nothing to sample."""
    rig = _Rig(load_tiny("llama"))
    assert rig.run((rig.sequence(range(3, 40)), 5)).shape == (0, 384)


class _RowSpy:
    def __init__(self, model):
        self.model, self.rows = model, []

    def __call__(self, **arguments):
        self.rows.append((arguments["input_ids"].shape[1], len(arguments["logits_to_keep"])))
        assert STEP_ARGUMENT in arguments
        return self.model(**arguments)


def test_runner_pads_rows_and_wanted_logits(load_tiny):
    """Few rows take another kernel with other rounding: a sequence alone must compute as beside others."""
    rig = _Rig(load_tiny("qwen2"), Padding(least_rows=2))
    rig.runner._model = spy = _RowSpy(rig.runner._model)
    assert rig.run((rig.sequence([5]), 1)).shape == (1, 384)
    assert spy.rows == [(2, 2)]


def test_runner_names_the_lack_of_device_memory(load_tiny):
    """Out of memory is the one failure of a device that has a name of its own."""
    rig = _Rig(load_tiny("qwen2"))

    def exhausted(**_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    rig.runner._model = exhausted
    with pytest.raises(OutOfDeviceMemory, match="2 GiB") as caught:
        rig.run((rig.sequence([5]), 1))
    assert "\n" not in str(caught.value)

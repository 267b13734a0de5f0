import math

import pytest
import torch

from seedance_server.engine.candidates import BLOCK_TOKENS, block_maxima


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, 5 * BLOCK_TOKENS + 3])
def test_block_maxima_are_those_of_each_block_when_the_last_is_short(vocabulary, dtype):
    """A short last block is judged by what it holds."""
    logits = -torch.rand(3, vocabulary, generator=torch.Generator().manual_seed(0)).to(dtype) - 1
    expected = torch.stack([part.amax(-1) for part in logits.split(BLOCK_TOKENS, dim=1)], dim=1)
    maxima = block_maxima(logits)
    assert maxima.dtype == dtype
    assert torch.equal(maxima, expected)


def test_block_maxima_are_nan_where_a_block_holds_one():
    """A broken row is seen without a pass of its own."""
    logits = torch.zeros(2, 3 * BLOCK_TOKENS)
    logits[1, BLOCK_TOKENS + 5] = math.nan
    assert block_maxima(logits).isnan().tolist() == [[False] * 3, [False, True, False]]

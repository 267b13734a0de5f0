import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.candidates import BLOCK_TOKENS, BlockPasses, best_tokens, block_tokens
from tests.engine_strategies import few_valued_rows

VOCABULARIES = [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, 5 * BLOCK_TOKENS + 3, 3000]


def random_logits(rows, vocabulary, dtype=torch.float32, seed=0):
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_block_maxima_are_those_of_each_block_when_the_last_is_short(vocabulary, dtype):
    """A short last block is judged by what it holds, also right after a longer row used the same scratch."""
    logits = random_logits(9, vocabulary, dtype) - 100
    passes = BlockPasses()
    passes.maxima(torch.full((9, vocabulary + BLOCK_TOKENS), 7.0))
    expected = torch.stack([part.amax(-1).float() for part in logits.split(BLOCK_TOKENS, dim=1)], dim=1)
    assert torch.equal(passes.maxima(logits), expected)


def test_block_maxima_are_nan_where_a_block_holds_one():
    """A broken row is seen without a pass of its own."""
    logits = torch.zeros(2, 3 * BLOCK_TOKENS)
    logits[1, BLOCK_TOKENS + 5] = math.nan
    assert BlockPasses().maxima(logits).isnan().tolist() == [[False] * 3, [False, True, False]]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_block_weights_sum_the_exponentials_of_the_rows_named(vocabulary):
    """Any rows in any order, each under its own peak and temperature."""
    logits = random_logits(4, vocabulary)
    rows, peaks, temperatures = [2, 0, 2], torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.5, 1.0, 2.0])
    weights = BlockPasses().weights(logits, rows, peaks, temperatures)
    scores = (logits[rows].double() - peaks[:, None]) / temperatures[:, None]
    expected = torch.stack([part.exp().sum(-1) for part in scores.split(BLOCK_TOKENS, dim=1)], dim=1)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_weights_are_the_same_bits_alone_and_among_others(dtype):
    """A sum's rounding must not tell how many rows there are."""
    logits = random_logits(21, 3000, dtype)
    rows = list(range(21))
    peaks, temperatures = logits.amax(-1).float(), torch.linspace(0.3, 2, 21)
    together = BlockPasses().weights(logits, rows, peaks, temperatures)
    for row in rows:
        alone = BlockPasses().weights(logits, [row], peaks[row : row + 1], temperatures[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_block_tokens_stand_for_no_token_beyond_the_vocabulary():
    """The last block is padded with what can't be chosen."""
    logits = random_logits(2, BLOCK_TOKENS + 2)
    ids, values = block_tokens(logits, torch.tensor([1]), torch.tensor([[1]]))
    assert ids.tolist() == [list(range(BLOCK_TOKENS, 2 * BLOCK_TOKENS))]
    assert values[0, :2].tolist() == logits[1, BLOCK_TOKENS:].tolist()
    assert (values[0, 2:] == -math.inf).all()


@given(few_valued_rows, st.integers(1, 400))
def test_best_tokens_are_those_of_a_full_sort_when_there_are_many_equals(numbers, count):
    """The values are exact, ids belong to them, and the lower id goes first among equals."""
    logits = torch.tensor([[0.0] * len(numbers), numbers])
    count = min(count, len(numbers))
    values, ids = best_tokens(logits, torch.tensor([1]), BlockPasses().maxima(logits), count)
    expected = logits[1].sort(descending=True, stable=True)
    assert torch.equal(values[0], expected.values[:count])
    better = int((values[0] > values[0, -1]).sum())
    assert ids[0, :better].tolist() == expected.indices[:better].tolist()
    assert torch.equal(logits[1, ids[0]], values[0])
    assert len(set(ids[0].tolist())) == count


def test_block_weights_are_nothing_where_nothing_can_be_chosen():
    """Neither what is ruled out nor what is too unlikely for a normal number weighs anything at all."""
    logits = torch.full((1, 3 * BLOCK_TOKENS), -math.inf)
    logits[0, 40], logits[0, 41], logits[0, 70] = -7.0, -93.9, -94.1
    weights = BlockPasses().weights(logits, [0], torch.tensor([-7.0]), torch.ones(1))
    assert weights.tolist() == [[0.0, 1.0, 0.0]]


def test_copies_keep_what_is_allowed_and_rule_out_the_rest():
    """In float32, any rows in any order, and the logits stay as they are."""
    logits = random_logits(3, 100, torch.bfloat16)
    allowed = torch.arange(100) % 3 == 1
    copies = BlockPasses().copy(logits, [2, 0, 2], [None, allowed, ~allowed])
    expected = logits[[2, 0, 2]].float()
    expected[1, ~allowed] = expected[2, allowed] = -math.inf
    assert torch.equal(copies, expected)

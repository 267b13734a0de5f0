"""What is found out about rows of logits: against the plain way, and each row as if it were alone."""

import math

import pytest
import torch

from seedance_server.engine.candidates import BlockPasses
from seedance_server.engine.logit_lines import CANDIDATES, LogitLines
from seedance_server.engine.sampling_params import MAX_TOP_LOGPROBS
from seedance_server.engine.streams import CpuStreams

VOCABULARY = 3003


class _Counted(BlockPasses):
    """Counts the rows whose weights are summed."""

    def __init__(self):
        super().__init__()
        self.weighed = 0

    def weights(self, logits, rows, peaks, temperatures):
        self.weighed += len(rows)
        return super().weights(logits, rows, peaks, temperatures)


def lines_of(logits, passes=None):
    return LogitLines(logits, passes or BlockPasses(), CpuStreams(lambda: 0.0))


def random_logits(rows=4):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peaks_and_firsts_are_the_greatest_and_the_first_that_has_it(dtype):
    """Equals are told apart by id, also in blocks of their own."""
    logits = random_logits().to(dtype)
    logits[1, [7, 2000, 2010]] = 50.0
    lines = lines_of(logits)
    assert lines.read() == []
    assert lines.peaks == logits.float().amax(-1).tolist()
    assert lines.firsts == [int((line == line.amax()).nonzero()[0]) for line in logits]
    assert lines.firsts[1] == 7


def test_sums_go_up_to_all_that_the_line_weighs():
    """By blocks and in double precision: a draw falls into them."""
    logits = random_logits()
    sums = lines_of(logits).sums([2, 0], [0.5, 2.0])
    scores = (logits[[2, 0]] - logits[[2, 0]].amax(-1, keepdim=True)).double() / torch.tensor([[0.5], [2.0]])
    torch.testing.assert_close(sums[:, -1], scores.exp().sum(-1), rtol=1e-5, atol=0)
    assert (sums.diff(dim=1) >= 0).all()


def test_total_is_summed_once_for_each_temperature():
    """Log-probabilities cost no second pass where the draw has summed already."""
    passes = _Counted()
    lines = lines_of(random_logits(), passes)
    lines.sums([1, 2], [1.0, 0.7])
    lines.totals([1, 2, 2], [1.0, 0.7, 1.0])
    assert passes.weighed == 3
    assert torch.equal(lines.totals([1], [1.0]), lines_of(random_logits()).totals([1], [1.0]))
    assert passes.weighed == 3


def test_scores_of_a_tiny_temperature_stay_finite():
    """The peak is subtracted before the quotient is taken."""
    logits = torch.tensor([[1e30, 0.0, -1e30]])
    scores = lines_of(logits).scores([0], logits, [1e-4])
    assert scores[0, 0] == 0
    assert (scores <= 0).all()
    assert not scores.isnan().any()


def test_top_tokens_are_those_of_a_sort_however_many_are_equal():
    """The lower ids first, even where more are equal than a first look finds."""
    logits = random_logits()
    logits[3] = 1.0
    logits[3, 5] = -math.inf
    tops = lines_of(logits).top([0, 3, 1], [5, 20, 0])
    expected = torch.sort(logits[0], descending=True, stable=True)
    assert tops[0] == list(zip(expected.indices[:5].tolist(), expected.values[:5].tolist(), strict=True))
    assert [token_id for token_id, _ in tops[1]] == [n for n in range(21) if n != 5]
    assert tops[2] == []
    assert CANDIDATES[0] >= MAX_TOP_LOGPROBS

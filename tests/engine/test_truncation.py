import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.streams import CpuStreams
from seedance_server.engine.truncation import Truncation, is_truncated
from tests.engine_strategies import picks, score_steps, truncations

STREAMS = CpuStreams(lambda: 0.0)


def by_the_book(scores, top_k, top_p, min_p):
    """How many of all `scores`, best first, are left: one rule after the other, in plain Python."""
    left = list(scores)
    if 0 < top_k < len(left):
        left = [score for score in left if score >= scores[top_k - 1]]
    if top_p < 1:
        weights = [math.exp(score) for score in left]
        total, before, count = sum(weights), 0.0, 0
        while count < len(left) and before < total * top_p:
            before += weights[count]
            count += 1
        left = left[:count]
    if min_p:
        left = [score for score in left if score >= math.log(min_p)]
    return max(1, len(left))


@given(score_steps, st.lists(truncations, min_size=3, max_size=3), picks)
def test_truncation_counts_by_the_book_or_says_that_it_cannot_tell(steps, asked, pick):
    """Seen in part, each row of a mixed batch has the right count or none, never a wrong one."""
    scores = sorted((-step / 4 + 0.0 for step in steps), reverse=True)
    scores = [score - scores[0] for score in scores]
    vocabulary = len(scores)
    params = [SamplingParams(**each) for each in asked]
    seen = 1 + pick % vocabulary
    bounds = Truncation.of(params, vocabulary, STREAMS.upload)
    total = torch.tensor([sum(map(math.exp, scores))] * 3, dtype=torch.float64)
    counts, decided = bounds.count(torch.tensor([scores[:seen]] * 3), total)
    for each, count, sure in zip(params, counts.tolist(), decided.tolist(), strict=True):
        if sure:
            assert count == by_the_book(scores, each.top_k, each.top_p, each.min_p)
        else:
            assert seen < vocabulary


def test_truncation_is_decided_by_few_tokens_when_they_hold_enough():
    """The rest of the vocabulary isn't looked at for what the best tokens show."""
    scores = torch.tensor([[0.0, -1.0, -2.0, -20.0]] * 3)
    params = [SamplingParams(top_k=2), SamplingParams(top_p=0.8), SamplingParams(min_p=0.2)]
    total = torch.exp(scores.double()).sum(1)
    counts, decided = Truncation.of(params, 1000, STREAMS.upload).count(scores, total)
    assert (counts.tolist(), decided.tolist()) == ([2, 2, 2], [True] * 3)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, False),
        ({"top_k": -1}, False),
        ({"top_k": 100}, False),
        ({"top_k": 99}, True),
        ({"top_p": 0.9}, True),
        ({"min_p": 0.1}, True),
    ],
)
def test_truncation_is_none_where_the_parameters_leave_all(params, expected):
    """A row without bounds needs no candidates."""
    assert is_truncated(SamplingParams(**params), 100) is expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"top_p": 0.9}, True), ({"top_p": 0.9, "top_k": 5}, False), ({"top_k": 5}, False)],
)
def test_truncation_needs_the_total_only_where_top_p_comes_first(params, expected):
    """The pass over the whole row is for those that it decides something for."""
    params = SamplingParams(**params)
    assert Truncation.of([params], 100, STREAMS.upload).needs_total(params) is expected

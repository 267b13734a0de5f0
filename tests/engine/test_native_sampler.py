"""The sampler on the kernels: by the book, as its twin in torch, and each row as if it were alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.candidates import BlockPasses
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.native_sampler import HeadMaxima, NativeSampler
from seedance_server.engine.philox import uniform
from seedance_server.engine.sampler import FAILED_ID, Sampler
from tests.engine.test_sampler import MIXED, TRUNCATIONS, random_logits, row, unusable_row
from tests.engine_strategies import few_valued_rows, seeds, truncations


@pytest.fixture(autouse=True, scope="module")
def _library():
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sample(logits, rows):
    return NativeSampler(logits.shape[1], HeadMaxima()).sample(logits, rows)


def by_the_book(numbers, temperature, top_k, top_p, min_p, number):
    """The token that a full sort leaves and one number in the line of those left picks, in plain Python."""
    scores = [(each - max(numbers)) / temperature for each in numbers]
    order = sorted(range(len(scores)), key=lambda token_id: (-scores[token_id], token_id))
    if 0 < top_k < len(order):
        order = [token_id for token_id in order if scores[token_id] >= scores[order[top_k - 1]]]
    if top_p < 1:
        total, before, count = sum(math.exp(scores[token_id]) for token_id in order), 0.0, 0
        while count < len(order) and before < total * top_p:
            before += math.exp(scores[order[count]])
            count += 1
        order = order[:count]
    if min_p:
        order = [token_id for token_id in order if scores[token_id] >= math.log(min_p)]
    left = sorted(order)
    target = number * sum(math.exp(scores[token_id]) for token_id in left)
    for token_id in left:
        target -= math.exp(scores[token_id])
        if target < 0:
            return token_id
    return left[-1]


@given(few_valued_rows, truncations, seeds, st.sampled_from([1.0, 0.5, 2.0]))
def test_draw_is_that_of_a_full_sort_when_many_tokens_are_equal(numbers, truncation, seed, temperature):
    """Ties at every edge, and an edge anywhere: the same token, by the same number."""
    (token_id,) = sample(torch.tensor([numbers]), [row(seed=seed, temperature=temperature, **truncation)]).ids
    assert token_id == by_the_book(numbers, temperature, **truncation, number=uniform(seed, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_tokens_are_those_of_the_twin_however_flat_the_rows_are(scale, dtype):
    """From a few candidates to nearly all of the vocabulary, whose last block is short."""
    logits = random_logits(len(TRUNCATIONS), vocabulary=20_001, scale=scale).to(dtype)
    for temperature in (0.3, 1.0):
        rows = [
            row(seed=seed, temperature=temperature, **truncation)
            for seed, truncation in enumerate(TRUNCATIONS)
        ]
        assert sample(logits, rows).ids == Sampler(20_001).sample(logits, rows).ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_all_kinds_get_what_the_twin_gives_them_and_what_they_get_alone(dtype):
    """The rules are the same over either; neighbours, places and known maxima change nothing, to the bit."""
    logits = random_logits(len(MIXED), vocabulary=1003).to(dtype)
    twin = Sampler(1003).sample(logits, MIXED)
    together, backwards = sample(logits, MIXED), sample(logits.flip(0), MIXED[::-1])
    assert together.ids == twin.ids
    for index, mine in enumerate(MIXED):
        alone = sample(logits[index : index + 1].clone(), [mine])
        for batch, place in ((together, index), (backwards, len(MIXED) - 1 - index)):
            assert (batch.ids[place], batch.logprobs[place]) == (alone.ids[0], alone.logprobs[0])
        if (theirs := twin.logprobs[index]) is not None:
            assert alone.logprobs[0].logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [each for each, _ in alone.logprobs[0].top] == [each for each, _ in theirs.top]
    if dtype == torch.bfloat16:
        maxima = HeadMaxima()
        maxima.keep(logits, BlockPasses().maxima(logits).bfloat16())
        assert NativeSampler(1003, maxima).sample(logits, MIXED) == together


def test_maxima_that_are_known_are_believed_and_not_those_of_other_logits():
    """They save a pass over the rows, of the newest logits only."""
    logits = torch.zeros(2, 64).bfloat16()
    logits[:, 40] = 1
    maxima = HeadMaxima()
    sampler = NativeSampler(64, maxima)
    maxima.keep(logits, torch.tensor([[0.0, 1.0], [math.nan, 1.0]]).bfloat16())
    found = sampler.sample(logits, [row(temperature=0)] * 2)
    assert found.ids == [40, FAILED_ID]
    assert sampler.sample(logits.clone(), [row(temperature=0)] * 2).ids == [40, 40]


@pytest.mark.parametrize(
    ("values", "params"),
    [
        ({3: math.nan}, {"temperature": 0}),
        ({70: math.nan}, {"top_p": 0.5, "logprobs": True}),
        ({3: math.inf}, {}),
        ({3: math.inf}, {"repetition_penalty": 2.0}),
        (dict.fromkeys(range(77), -math.inf), {"temperature": 0}),
        (dict.fromkeys(range(77), -math.inf), {"top_k": 5}),
        ({}, {"banned_ids": tuple(range(77))}),
        ({}, {"allowed": torch.zeros(77, dtype=torch.bool), "top_p": 0.5}),
    ],
)
def test_row_fails_alone_when_its_logits_are_unusable(values, params):
    """The same error as in torch for that row, its neighbours as without it."""
    logits, rows, expected = unusable_row(sample, values, params, vocabulary=77)
    found, twin = sample(logits, rows), Sampler(77).sample(logits, rows)
    assert found.ids == twin.ids == expected
    assert list(map(str, found.errors)) == list(map(str, twin.errors))


def test_repetition_moves_logits_down_on_either_side_of_nothing():
    """A negative one is multiplied, a positive one divided, each token once however often it came."""
    logits = torch.tensor([[-1.0, -1.5, -9.0], [3.0, 2.0, -9.0], [3.0, 1.0, -9.0]])
    rows = [row(temperature=0, repetition_penalty=2.0, prompt_ids=[0], output_ids=[0])] * 3
    assert sample(logits, rows).ids == [1, 1, 0]


def test_token_that_is_ruled_out_is_never_drawn():
    """By the model, a ban or a form: it has no weight at all, whatever the number is."""
    logits = torch.full((200, 64), -math.inf)
    logits[:, 40], logits[:, 41] = -7.0, -9.0
    cuts = ({}, {"top_k": 9}, {"top_p": 1 - 1e-12}, {"min_p": 1e-30, "temperature": 100})
    rows = [row(seed=seed, banned_ids=(41,) * (seed % 2), **cuts[seed % 4]) for seed in range(200)]
    found = sample(logits, rows).ids
    assert set(found) == {40, 41}
    assert set(found[1::2]) == {40}


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_tokens_come_as_often_as_they_should_when_drawn_many_times(params):
    """Chi-square against the exact distribution, over fixed seeds: at most the 99.9 % point."""
    draws, vocabulary = 4000, 12
    logits = random_logits(1, vocabulary=vocabulary, scale=1.0)
    numbers = logits[0].tolist()
    steps = 2000
    bounds = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | params
    exact = [by_the_book(numbers, **bounds, number=(step + 0.5) / steps) for step in range(steps)]
    expected = torch.bincount(torch.tensor(exact), minlength=vocabulary) * draws / steps
    rows = [row(seed=seed, position=seed % 7, **params) for seed in range(draws)]
    counts = torch.bincount(torch.tensor(sample(logits.expand(draws, -1), rows).ids), minlength=vocabulary)
    possible = expected > 0
    assert not counts[~possible].any()
    chi_square = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    assert chi_square < 31.3  # 11 degrees of freedom, the most that any case has


def test_logprobs_name_the_lower_ids_when_many_tokens_are_equal():
    """Also where fewer tokens than alternatives are there, and some of them are ruled out."""
    logits = torch.zeros(2, 3000)
    logits[1, 2000:2500] = 1.0
    both = [row(temperature=0, logprobs=True, top_logprobs=count) for count in (20, 3)]
    tops = [[token_id for token_id, _ in each.top] for each in sample(logits, both).logprobs]
    assert tops == [list(range(20)), [2000, 2001, 2002]]
    few = torch.tensor([[0.0, -math.inf, 0.0]])
    wanted = [row(temperature=0, logprobs=True, top_logprobs=20)]
    assert sample(few, wanted) == Sampler(3).sample(few, wanted)


def test_masks_that_do_not_fit_are_refused_and_other_logits_left_to_torch():
    """The kernel would read beyond a mask; of numbers that it doesn't read there is the twin."""
    logits = random_logits(1, vocabulary=64)
    mask = torch.ones(64, dtype=torch.bool)
    for wrong in (mask[:63], mask.int()):
        with pytest.raises(ValueError, match="allowed"):
            sample(logits, [row(allowed=wrong)])
    assert sample(logits.double(), [row(seed=5)]).ids == sample(logits, [row(seed=5)]).ids
    with pytest.raises(ValueError, match="2 rows"):
        sample(logits, [row(), row()])
    for width in (63, 65):  # a mask is as wide as the vocabulary
        with pytest.raises(ValueError, match=f"1 rows of {width}"):
            NativeSampler(width, HeadMaxima()).sample(logits, [row()])

"""The sampler: exact, the same for a row whatever its neighbours, and fair."""

import math

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from seedance_server.engine.candidates import BlockPasses
from seedance_server.engine.logit_lines import CANDIDATES, LogitLines
from seedance_server.engine.philox import uniform
from seedance_server.engine.sampler import (
    FAILED_ID,
    RowLogprobs,
    Sampler,
    SamplingRow,
    _truncate,
)
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.streams import CpuStreams, CudaStreams
from seedance_server.engine.token_history import TokenHistory
from tests.engine.fake_cuda import FakeCuda, HostReads

VOCABULARY = 10_000
IDS = torch.tensor([[0]])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def row(*, seed=0, position=0, prompt_ids=(), output_ids=(), banned_ids=(), allowed=None, **params):
    return SamplingRow(
        params=SamplingParams(**params),
        seed=seed,
        position=position,
        counts=TokenHistory(len(prompt_ids)).counts([*prompt_ids, *output_ids]),
        banned_ids=banned_ids,
        allowed=allowed,
    )


def random_logits(rows, vocabulary=VOCABULARY, scale=3.0, seed=0):
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def sample(logits, rows):
    return Sampler(logits.shape[1]).sample(logits, rows)


def unusable_row(sample, values, params, *, vocabulary):
    """Three rows, the middle one of no use, and the ids due: its neighbours' as without it."""
    logits = random_logits(3, vocabulary=vocabulary)
    rows = [row(seed=1), row(seed=2, **params), row(temperature=0)]
    expected = sample(logits[[0, 2]], [rows[0], rows[2]])
    for token_id, value in values.items():
        logits[1, token_id] = value
    return logits, rows, [expected.ids[0], FAILED_ID, expected.ids[1]]


def kept(logits, params):
    """Ids that truncation leaves, ascending."""
    alone = SamplingRow(params=params, seed=0, position=0)
    lines = LogitLines(logits[None], BlockPasses(), CpuStreams(lambda: 0.0))
    for seen in (*CANDIDATES, len(logits)):
        left = _truncate(lines, [0], [alone], seen)
        if left.decided:
            break
    return sorted(left.ids[0, : int(left.counts)].tolist())


def survivors(logits, **params):
    """Ids that can be chosen, as the sampler and as Transformers see it."""
    settings = SamplingParams(**params)
    warped = TemperatureLogitsWarper(float(settings.temperature))(IDS, logits[None].clone())
    if settings.top_k > 0:
        warped = TopKLogitsWarper(settings.top_k)(IDS, warped)
    if settings.top_p < 1:
        warped = TopPLogitsWarper(float(settings.top_p))(IDS, warped)
    if settings.min_p > 0:
        warped = MinPLogitsWarper(float(settings.min_p))(IDS, warped)
    return kept(logits, settings), torch.isfinite(warped[0]).nonzero().flatten().tolist()


TRUNCATIONS = [
    {},
    {"top_k": 1},
    {"top_k": 63},
    {"top_k": 64},
    {"top_k": 65},
    {"top_k": 5000},
    {"top_k": VOCABULARY},
    {"top_k": 2**31 - 1},
    {"top_p": 1e-30},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 1.0},
    {"min_p": 0.1},
    {"min_p": 1e-4},
    {"top_k": 100, "top_p": 0.5},
    {"top_k": 100, "top_p": 0.95, "min_p": 0.02},
    {"top_p": 0.7, "min_p": 0.3},
]


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_tokens_left_equal_transformers_when_truncated(truncation, temperature):
    """However many tokens it takes to decide, the set is that of a full sort."""
    ours, theirs = survivors(random_logits(1)[0], temperature=temperature, **truncation)
    assert ours == theirs


@pytest.mark.parametrize(
    "truncation", [{"top_k": 10}, {"top_k": 64}, {"min_p": 0.5}, {"top_p": 0.5}], ids=str
)
def test_ties_are_kept_as_documented_when_truncated(truncation):
    """A tie at the edge of top_k and min_p is kept whole; top_p keeps the lower ids."""
    ties = torch.zeros(1000)
    assert kept(ties, SamplingParams(**truncation)) == list(range(500 if "top_p" in truncation else 1000))


def test_greedy_takes_the_first_maximum_when_there_are_several():
    """Ties are broken by id, so two runs agree."""
    logits = torch.zeros(2, 300)
    logits[0, [50, 7, 299]] = 4.0
    assert sample(logits, [row(temperature=0), row(temperature=0)]).ids == [7, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_equals_argmax_of_adjusted_logits(dtype):
    """A ban and a bias count for greedy rows too, in any dtype of the model."""
    logits = random_logits(3).to(dtype)
    best = logits.argmax(-1).tolist()
    rows = [
        row(temperature=0),
        row(temperature=0, banned_ids=(best[1],)),
        row(temperature=1e-30, logit_bias={17: 100}),
    ]
    ids = sample(logits, rows).ids
    assert ids[0] == best[0]
    assert ids[1] == logits[1].topk(2).indices[1]
    assert ids[2] == 17


FORM = torch.arange(1003) % 7 == 3

MIXED = [
    row(temperature=0),
    row(seed=1),
    row(seed=-5, temperature=0.3, top_p=0.9),
    row(seed=2**63 - 1, temperature=1.7, top_k=100, logprobs=True, top_logprobs=20),
    row(seed=4, min_p=0.05, repetition_penalty=1.3, prompt_ids=[1, 2], output_ids=[3, 3]),
    row(seed=4, presence_penalty=1, frequency_penalty=-1, output_ids=[9, 9, 8], top_p=0.99),
    row(temperature=0, logit_bias={5: 50}, banned_ids=(1, 2), logprobs=True),
    row(seed=6, regex="a", allowed=FORM, logprobs=True),
    row(seed=7, regex="a", allowed=FORM.flip(0), top_p=0.9, repetition_penalty=1.3, output_ids=[9, 8]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_gets_what_it_gets_alone_when_in_a_mixed_batch(dtype):
    """Neighbours change nothing, to the last bit of the log-probabilities, wherever a row sits."""
    logits = random_logits(len(MIXED), vocabulary=1003).to(dtype)
    together = sample(logits, MIXED)
    backwards = sample(logits.flip(0), MIXED[::-1])
    for index, mine in enumerate(MIXED):
        alone = sample(logits[index : index + 1].clone(), [mine])
        for batch, place in ((together, index), (backwards, len(MIXED) - 1 - index)):
            assert (batch.ids[place], batch.logprobs[place]) == (alone.ids[0], alone.logprobs[0])


@pytest.mark.parametrize(
    ("values", "params"),
    [
        ({3: math.nan}, {"temperature": 0}),
        ({3: math.nan}, {"top_p": 0.5}),
        ({3: math.inf}, {}),
        (dict.fromkeys(range(64), -math.inf), {"temperature": 0}),
        ({}, {"banned_ids": tuple(range(64))}),
    ],
)
def test_row_fails_alone_when_its_logits_are_unusable(values, params):
    """NaN, +inf, nothing but -inf, everything banned: an error for that row, its neighbours as without it."""
    logits, rows, expected = unusable_row(sample, values, params, vocabulary=64)
    sampled = sample(logits, rows)
    assert sampled.ids == expected
    assert [error is None for error in sampled.errors] == [True, False, True]


def test_rows_get_what_they_get_alone_when_all_take_a_longer_look():
    """Rows so flat that the first candidates decide nothing are looked at together, each for itself."""
    logits = random_logits(40, vocabulary=3000, scale=0.3)
    rows = [row(seed=n, top_p=(0.1, 0.5, 0.99)[n % 3]) for n in range(40)]
    together = sample(logits, rows).ids
    assert together == [sample(line[None], [each]).ids[0] for line, each in zip(logits, rows, strict=True)]
    for line, each, token_id in zip(logits, rows, together, strict=True):
        assert token_id in kept(line, each.params)


def test_single_minus_infinity_is_no_error():
    """A model may rule tokens out; they are just never chosen."""
    logits = torch.full((1, 64), -math.inf)
    logits[0, 40] = -1e30
    assert sample(logits, [row(temperature=0.01)]).ids == [40]
    assert sample(logits, [row(temperature=100, top_p=0.5)]).ids == [40]


def test_choice_is_the_same_when_seed_and_position_are():
    """Seed 42 today is seed 42 tomorrow; another position or seed draws anew."""
    logits = random_logits(1, scale=0.5)
    draws = [sample(logits, [row(seed=42, position=position)]).ids[0] for position in (0, 0, 1, 2)]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3
    assert sample(logits, [row(seed=43)]).ids[0] != draws[0]


def test_choice_does_not_move_when_truncation_removes_only_what_was_never_near():
    """The draw lands in a line ordered by id: dropping the far tail keeps it in place."""
    logits = random_logits(1, scale=8.0)
    for seed in range(50):
        plain = sample(logits, [row(seed=seed)]).ids
        assert sample(logits, [row(seed=seed, top_p=1 - 1e-9)]).ids == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"banned_ids": (0, 1)}],
    ids=str,
)
def test_tokens_come_as_often_as_they_should_when_drawn_many_times(params):
    """Chi-square against the exact distribution, over fixed seeds: at most the 99.9 % point."""
    draws, vocabulary = 4000, 12
    logits = random_logits(1, vocabulary=vocabulary, scale=1.0)
    exact = logits[0].double() / params.get("temperature", 1.0)
    exact[list(params.get("banned_ids", ()))] = -math.inf
    truncation = {name: params[name] for name in ("top_k", "top_p", "min_p") if name in params}
    _, theirs = survivors(exact.float(), **truncation)
    weights = torch.zeros(vocabulary, dtype=torch.float64)
    weights[theirs] = exact.exp()[theirs]
    expected = draws * weights / weights.sum()
    rows = [row(seed=seed, position=seed % 7, **params) for seed in range(draws)]
    counts = torch.bincount(torch.tensor(sample(logits.expand(draws, -1), rows).ids), minlength=vocabulary)
    assert not counts[expected == 0].any()
    possible = expected > 0
    chi_square = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    assert chi_square < 31.3  # 11 degrees of freedom, the most that any case has


def test_logprobs_are_those_of_the_model_when_the_request_bends_them():
    """Temperature, penalties and bias change the choice, not what is reported about the model."""
    logits = random_logits(1, vocabulary=64)
    expected = torch.log_softmax(logits[0], -1)
    sampled = sample(logits, [row(temperature=0, logit_bias={5: 100}, logprobs=True, top_logprobs=3)])
    (logprobs,) = sampled.logprobs
    assert sampled.ids == [5]
    assert logprobs.logprob == pytest.approx(float(expected[5]), abs=1e-5)
    best = expected.topk(3)
    assert [token_id for token_id, _ in logprobs.top] == best.indices.tolist()
    assert [value for _, value in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_logprobs_are_only_there_when_asked_for():
    """Nobody pays for what was not asked; fewer tokens than alternatives is fine."""
    logits = torch.zeros(2, 3)
    sampled = sample(logits, [row(temperature=0), row(temperature=0, logprobs=True, top_logprobs=20)])
    third = pytest.approx(-math.log(3), abs=1e-6)
    assert sampled.logprobs[0] is None
    assert sampled.logprobs[1] == RowLogprobs(third, ((0, third), (1, third), (2, third)))


def test_logits_are_not_changed():
    """They may be read again, e.g. for log-probabilities."""
    logits = random_logits(len(MIXED), vocabulary=1003)
    before = logits.clone()
    sample(logits, MIXED)
    assert torch.equal(logits, before)


def test_logits_of_a_wrong_shape_are_refused():
    """A mix-up of rows is loud, never a wrong token."""
    with pytest.raises(ValueError, match="2 rows"):
        Sampler(10).sample(torch.zeros(3, 10), [row(), row()])
    assert Sampler(10).sample(torch.zeros(0, 10), []).ids == []


def test_logprobs_name_the_lower_ids_when_many_tokens_are_equal():
    """More equals than a first look finds, in no particular place of the vocabulary."""
    logits = torch.zeros(2, 3000)
    logits[1, 2000:2500] = 1.0
    both = [row(temperature=0, logprobs=True, top_logprobs=count) for count in (20, 3)]
    tops = [[token_id for token_id, _ in each.top] for each in sample(logits, both).logprobs]
    assert tops == [list(range(20)), [2000, 2001, 2002]]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_draw_falls_where_the_line_of_tokens_left_says(truncation):
    """By the book: the tokens left lined up by id, each as long as its weight, and one number."""
    logits = random_logits(10)
    rows = [row(seed=seed, position=3, **truncation) for seed in range(len(logits))]
    for line, each, token_id in zip(logits, rows, sample(logits, rows).ids, strict=True):
        ids = kept(line, each.params)
        weights = torch.exp(line[ids].double())
        sums = weights.cumsum(0) / weights.sum()
        place = ids.index(token_id)
        number = uniform(each.seed, each.position)
        assert (sums[place] - weights[place] / weights.sum()) - 1e-6 <= number <= sums[place] + 1e-6


def test_device_is_waited_for_once_whatever_rows_ask(monkeypatch):
    """Greedy, drawn and truncated rows, sound or not, come back in one copy; nothing else is looked at."""
    logits = random_logits(8, scale=9.0)  # so that 64 tokens decide
    logits[3, 7], logits[4] = math.nan, -math.inf
    some = [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 9}, {"top_p": 0.5}, {}, {"min_p": 0.1}, {}]
    rows = [row(seed=seed, **params) for seed, params in enumerate(some)]
    expected = sample(logits, rows)
    cuda = FakeCuda()
    streams = CudaStreams(torch.device("cpu"), cuda)
    sampler = Sampler(logits.shape[1], streams=streams)
    tolist = torch.Tensor.tolist

    def landed(tensor):
        ours = streams._landing.untyped_storage().data_ptr()
        assert tensor.untyped_storage().data_ptr() == ours, "the host looks at what is on the device"
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", landed)
    cuda.log.clear()
    with HostReads() as reads:
        found = sampler.sample(logits, rows)
    assert found.ids == expected.ids
    assert [error is None for error in found.errors] == [place not in (3, 4) for place in range(8)]
    assert cuda.log.count(("synchronize",)) == 1
    assert set(reads.counts) <= {"aten::lift_fresh"}, "but for tensors of the host's own numbers"

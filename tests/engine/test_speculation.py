import random
from collections import Counter

import pytest
import torch

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.errors import NumericalError
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.speculation import Speculation
from tests.engine.driving import drive, make_engine, make_request
from tests.tiny_models import KINDS


def _decoding(number=0, *, limit=1000, output=(4,)):
    """A sequence that repeats itself, with its first token sampled."""
    request = GenerationRequest(
        id=number, prompt_ids=(1, 2, 3, 4, 1, 2, 3), params=SamplingParams(), arrival_s=0.0
    )
    sequence = Sequence(request, order=number, seed=0, limit=limit, table=BlockTable(([],)))
    sequence.token_ids += output
    sequence.computed = len(sequence.token_ids) - 1
    return sequence


@pytest.mark.parametrize(("decoding", "tokens"), [(1, 3), (2, 3), (3, 1), (4, 1), (5, 0), (64, 0)])
def test_speculation_runs_ahead_only_while_the_batch_is_small(decoding, tokens):
    """Rows are cheap up to eight; a full batch has no use for guesses."""
    sequences = [_decoding(number) for number in range(decoding)]
    Speculation(7).propose(sequences)
    assert [len(sequence.draft) for sequence in sequences] == [tokens] * decoding


def test_speculation_leaves_prompts_and_paused_sequences_alone():
    """Nothing can be proved where no token is sampled, and the first one is for the prompt to say."""
    paused, prompt, first, other = (_decoding(number) for number in range(4))
    paused.paused = True
    prompt.computed = 2
    del first.token_ids[-1:]
    first.computed = len(first.token_ids) - 1
    Speculation(7).propose([paused, prompt, first, other])
    assert [len(each.draft) for each in (paused, prompt, first, other)] == [0, 0, 0, 3]


@pytest.mark.parametrize(("limit", "tokens"), [(9, 0), (10, 1), (11, 2), (12, 3), (13, 3)])
def test_speculation_never_runs_beyond_the_longest_answer(limit, tokens):
    """With the token that is sampled behind it, a draft fits: no block is asked for that can't be had."""
    sequence = _decoding(limit=limit)
    Speculation(7).propose([sequence])
    assert len(sequence.draft) == tokens


def test_speculation_of_no_tokens_is_none():
    """Turned off, it costs nothing."""
    sequence = _decoding()
    Speculation(0).propose([sequence])
    assert sequence.draft == ()


def test_speculation_takes_a_draft_back_when_the_next_step_has_none():
    """A draft is of one step: the tokens before it have moved on."""
    speculation, sequence = Speculation(7), _decoding()
    speculation.propose([sequence])
    speculation.learn(sequence, len(sequence.draft), 0)
    speculation.propose([sequence])
    assert sequence.draft == ()
    assert (speculation.drafted_tokens, speculation.accepted_tokens) == (3, 0)


def test_speculation_forgets_a_sequence_that_has_ended():
    """Another one under the same id starts anew."""
    speculation, sequence = Speculation(7), _decoding()
    speculation.propose([sequence])
    speculation.learn(sequence, len(sequence.draft), 0)
    speculation.forget(sequence)
    speculation.forget(sequence)
    speculation.propose([sequence])
    assert sequence.draft


# ---- the engine that runs ahead

PROMPT = (*range(30, 50), *range(33, 41))
ALL_KINDS_OF_PARAMETERS = {
    "greedy": {},
    "warm": {"temperature": 0.7, "seed": 5},
    "hot": {"temperature": 1.5, "top_p": 0.9, "seed": 6},
    "penalised": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "temperature": 0.8,
        "seed": 7,
        "ignore_eos": True,
    },
    "long enough": {"min_tokens": 30, "temperature": 1.0, "seed": 8},
    "explained": {"logprobs": True, "top_logprobs": 3},
    "stopped": {"stop": ("the",), "ignore_eos": True},
}


def _answer(model, params, **settings):
    engine = make_engine(model, **settings)
    answer = drive(engine, [make_request(0, PROMPT, max_tokens=48, **params)])[0]
    return answer, engine.statistics()


class _Guesses(Speculation):
    """Drafts of random tokens for everybody, now and then the ones that plain decoding gave."""

    def __init__(self, plain, seed):
        super().__init__(7)
        self._plain, self._random = plain, random.Random(seed)

    def propose(self, running):
        for sequence in running:
            ahead = self._plain[sequence.completion_tokens :] if self._random.random() < 0.7 else []
            guess = [*ahead, *(self._random.randrange(384) for _ in range(7))]
            room = sequence.limit - len(sequence.token_ids) - 1
            sequence.draft = tuple(guess[: min(self._random.randint(0, 7), room)])

    def learn(self, sequence, drafted, accepted):
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", ALL_KINDS_OF_PARAMETERS.values(), ids=ALL_KINDS_OF_PARAMETERS)
def test_engine_that_runs_ahead_gives_what_plain_decoding_gives(kind, params, load_tiny):
    """Guesses right and wrong, of any length: the same tokens, text, end, and log-probabilities."""
    model = load_tiny(kind)
    plain, _ = _answer(model, params, speculative_tokens=0)
    engine = make_engine(model)
    engine._speculation = guesses = _Guesses(plain.token_ids, seed=len(kind))
    requests = [make_request(n, PROMPT, max_tokens=48, **params) for n in range(3)]
    for answer in drive(engine, requests).values():
        assert (answer.text, answer.token_ids) == (plain.text, plain.token_ids)
        assert (answer.finish.reason, answer.finish.stop) == (plain.finish.reason, plain.finish.stop)
        assert answer.finish.usage == plain.finish.usage
        assert [entry.logprob for entry in answer.logprobs] == pytest.approx(
            [entry.logprob for entry in plain.logprobs], abs=1e-4
        )
    assert guesses.drafted_tokens > guesses.accepted_tokens > (len(plain.token_ids) > 20) * 8


@pytest.mark.slow
def test_engine_saves_steps_when_an_answer_repeats_itself(load_tiny):
    """A bias makes the answer a loop of a few tokens: most of them come several at a time."""
    params = {"logit_bias": {60: 30.0, 61: 30.0}, "ignore_eos": True}
    plain, before = _answer(load_tiny("qwen2"), params, speculative_tokens=0)
    answer, after = _answer(load_tiny("qwen2"), params)
    assert answer.token_ids == plain.token_ids
    assert after.steps + after.accepted_tokens == before.steps
    assert after.steps < 0.7 * before.steps


@pytest.mark.slow
def test_engine_that_runs_ahead_draws_as_often_as_the_model_says(load_tiny, stock_tiny):
    """Chi-square over pairs of tokens against the model's own distribution: no more than chance explains."""
    draws, kept, temperature = 1600, 4, 1.3
    model = load_tiny("qwen2")
    engine = make_engine(model, max_sequences=100)
    plain = drive(engine, [make_request(0, PROMPT, max_tokens=3)])[0].token_ids
    engine._speculation = guesses = _Guesses(plain, seed=3)
    params = {"temperature": temperature, "top_k": kept, "max_tokens": 3, "ignore_eos": True}
    requests = [make_request(seed, PROMPT, seed=seed, **params) for seed in range(draws)]
    pairs = Counter(tuple(answer.token_ids[1:3]) for answer in drive(engine, requests).values())

    def following(ids):
        with torch.inference_mode():
            logits = stock_tiny("qwen2")(input_ids=torch.tensor([[*PROMPT, *ids]])).logits[0, -1]
        best = (logits.double() / temperature).topk(kept)
        return dict(zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True))

    expected = Counter()
    for first, likely in following([]).items():
        for second, next_likely in following([first]).items():
            for third, last_likely in following([first, second]).items():
                expected[second, third] += draws * likely * next_likely * last_likely
    assert set(pairs) <= set(expected)
    common = [pair for pair, count in expected.items() if count >= 5]
    rest = draws - sum(expected[pair] for pair in common), draws - sum(pairs[pair] for pair in common)
    chi_square = sum((pairs[pair] - expected[pair]) ** 2 / expected[pair] for pair in common)
    chi_square += (rest[1] - rest[0]) ** 2 / max(rest[0], 1)
    assert guesses.accepted_tokens > 50
    assert chi_square < len(common) + 3.1 * (2 * len(common)) ** 0.5 + 10  # normal approximation, and room


def test_engine_ends_only_the_sequence_whose_draft_has_unusable_logits(load_tiny, monkeypatch):
    """A row of NaN behind a wrong guess is nobody's; behind a right one it ends the answer there."""
    model = load_tiny("llama")
    plain, _ = _answer(model, {"ignore_eos": True}, speculative_tokens=0)
    engine = make_engine(model)
    engine._speculation = _Guesses(plain.token_ids, seed=1)
    run = engine._runner.run

    def poisoned(batch):
        logits = run(batch).clone()
        first_row = 0
        for chunk in batch.sampled:
            if chunk.draft and chunk.sequence.completion_tokens > 20:
                logits[first_row + 1 :] = float("nan")
            first_row += chunk.sampled_rows
        return logits

    monkeypatch.setattr(engine._runner, "run", poisoned)
    answer = drive(engine, [make_request(0, PROMPT, max_tokens=48, ignore_eos=True)])[0]
    assert isinstance(answer.finish.error, NumericalError)
    assert answer.token_ids == plain.token_ids[: len(answer.token_ids)]
    assert len(answer.token_ids) > 20

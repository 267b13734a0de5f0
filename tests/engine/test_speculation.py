import random
from collections import Counter

import pytest
import torch
from hypothesis import given

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.errors import NumericalError
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.speculation import ALLOWANCE, Speculation
from seedance_server.engine.step_cost import StepCost
from tests.engine.driving import drive, make_engine, make_request
from tests.engine_strategies import answers_beside_prompts, step_costs
from tests.tiny_models import KINDS


def _decoding(number=0, *, limit=1000, prompt=(1, 2, 3, 4, 1, 2, 3), output=(4,)):
    """A sequence that repeats itself, with its first token sampled."""
    request = GenerationRequest(id=number, prompt_ids=prompt, params=SamplingParams(), arrival_s=0.0)
    sequence = Sequence(request, order=number, seed=0, limit=limit, table=BlockTable(([],)))
    sequence.token_ids += output
    sequence.computed = len(sequence.token_ids) - 1
    return sequence


FREE = StepCost(((1, 1.0), (64, 1.0)))
EIGHT_ARE_CHEAP = StepCost(((1, 1.0), (8, 1.02), (9, 3.0)))


@pytest.mark.parametrize(("decoding", "tokens"), [(1, 7), (2, 6), (4, 4), (6, 2), (8, 0), (16, 0)])
def test_speculation_runs_ahead_as_far_as_rows_are_cheap(decoding, tokens):
    """The rows that take no longer are shared; beyond them guesses would have to be better than any are."""
    sequences = [_decoding(number) for number in range(decoding)]
    Speculation(7, EIGHT_ARE_CHEAP).propose(sequences)
    assert sum(len(sequence.draft) for sequence in sequences) == tokens


@pytest.mark.parametrize(("decoding", "drafts"), [(16, True), (17, False)])
def test_speculation_guesses_nothing_in_a_large_batch(decoding, drafts):
    """There each guess would be looked for at the expense of many."""
    sequences = [_decoding(number) for number in range(decoding)]
    Speculation(7, FREE).propose(sequences)
    assert any(sequence.draft for sequence in sequences) is drafts


def test_speculation_prefers_the_sequence_whose_guesses_are_likelier():
    """Where there is room for a few guesses, they go where they bring the most."""
    sure = _decoding(0, prompt=tuple(range(10, 30)) * 2, output=tuple(range(10, 15)))
    unsure = _decoding(1, prompt=(1, 2, 1, 3, 1, 4, 1, 5), output=(1,))
    Speculation(7, EIGHT_ARE_CHEAP).propose([unsure, sure])
    assert (len(sure.draft), len(unsure.draft)) == (6, 0)


def test_speculation_counts_the_rows_of_prompts_beside():
    """What is free in a step of few rows isn't in one that a prompt has made long already."""
    sequence = _decoding()
    Speculation(7, EIGHT_ARE_CHEAP).propose([sequence], other_rows=20)
    assert sequence.draft == ()


@pytest.mark.parametrize(("prompt_rows", "tokens"), [(0, 0), (5, 7)])
def test_speculation_guesses_less_where_drafts_take_longer_than_measured(prompt_rows, tokens):
    """What was measured at start may be wrong by now; a step that a prompt made long says nothing of it."""
    speculation = Speculation(7, EIGHT_ARE_CHEAP)
    for _ in range(60):
        speculation.note(1, 1, 0, 0.020)
        speculation.note(1, 8, prompt_rows, 0.050)
    sequence = _decoding()
    speculation.propose([sequence])
    assert len(sequence.draft) == tokens


@pytest.mark.parametrize("row", [0.01, 0.1], ids=["drafts in every step", "drafts until they seem dear"])
@pytest.mark.parametrize("dearer", [1, 8])
@pytest.mark.parametrize("start", [1.0, 32.0])
def test_speculation_finds_what_rows_cost_whatever_it_took_them_to_cost(start, dearer, row):
    """Neither what was found in a busy moment nor what was measured at rest stands for ever."""
    dice, sequence = random.Random(1), _decoding()
    speculation = Speculation(3, StepCost(((1, 1.0), (4, 1 + 3 * row))))
    speculation._dearness.factor = start
    with_drafts = 0
    for step in range(5000):
        speculation.propose([sequence])
        drafted = len(sequence.draft)
        speculation.learn(sequence, drafted, drafted)
        speculation.note(1, 1 + drafted, 0, (1 + dearer * row * drafted) * dice.uniform(0.999, 1.001))
        with_drafts += drafted > 0 and step >= 4000
    assert speculation._dearness.factor < 1.5 * dearer
    assert speculation._dearness.factor > dearer / 1.5 or with_drafts < 50
    assert with_drafts > 980 or row * dearer > 0.5


def test_speculation_leaves_prompts_and_paused_sequences_alone():
    """Nothing can be proved where no token is sampled, and the first one is for the prompt to say."""
    paused, prompt, first, other = (_decoding(number) for number in range(4))
    paused.paused = True
    prompt.computed = 2
    del first.token_ids[-1:]
    first.computed = len(first.token_ids) - 1
    Speculation(7, FREE).propose([paused, prompt, first, other])
    assert [len(each.draft) for each in (paused, prompt, first, other)] == [0, 0, 0, 7]


@pytest.mark.parametrize(("limit", "tokens"), [(9, 0), (10, 1), (11, 2), (12, 3), (13, 4)])
def test_speculation_never_runs_beyond_the_longest_answer(limit, tokens):
    """With the token that is sampled behind it, a draft fits: no block is asked for that can't be had."""
    sequence = _decoding(limit=limit)
    Speculation(7, FREE).propose([sequence])
    assert len(sequence.draft) == tokens


def test_speculation_of_no_tokens_is_none():
    """Turned off, it costs nothing."""
    sequence = _decoding()
    Speculation(0, FREE).propose([sequence])
    assert sequence.draft == ()


def test_speculation_takes_a_draft_back_when_the_next_step_has_none():
    """A draft is of one step: the tokens before it have moved on."""
    speculation, sequence = Speculation(7, FREE), _decoding()
    speculation.propose([sequence])
    speculation.learn(sequence, len(sequence.draft), 0)
    sequence.paused = True
    speculation.propose([sequence])
    assert sequence.draft == ()
    assert (speculation.drafted_tokens, speculation.accepted_tokens) == (7, 0)


def _play(speculation, texts):
    """Let sequences decode side by side to known ends.

    Yields after each step, for each sequence that took part: the time that it has taken, and the time that it
    would have taken without drafts in the same company, both in steps without drafts.
    """
    ahead = {}
    for number, (prompt, answer) in enumerate(texts):
        ahead[number] = _decoding(
            number, prompt=(9, *prompt), output=answer[:1], limit=1 + len(prompt + answer)
        )
    with_drafts, without = dict.fromkeys(ahead, 0.0), dict.fromkeys(ahead, 0.0)
    while ahead:
        speculation.propose(ahead.values())
        rows = len(ahead) + sum(len(each.draft) for each in ahead.values())
        longer = speculation.cost.of(rows) / speculation.cost.of(len(ahead))
        speculation.note(len(ahead), rows, 0, speculation.cost.of(rows))
        for number, sequence in list(ahead.items()):
            answer, at = texts[number][1], sequence.completion_tokens
            right = 0
            while right < len(sequence.draft) and answer[at + right] == sequence.draft[right]:
                right += 1
            sequence.token_ids += answer[at : at + right + 1]
            sequence.computed = len(sequence.token_ids) - 1
            speculation.learn(sequence, len(sequence.draft), right)
            with_drafts[number] += longer
            without[number] += 1 + right
            yield with_drafts[number], without[number]
            if sequence.completion_tokens == len(answer):
                speculation.forget(ahead.pop(number))


@given(answers_beside_prompts, step_costs)
def test_drafts_never_cost_a_sequence_more_than_the_allowance(texts, cost):
    """At every moment, whatever the texts, the neighbours and the costs: the promise of 5 %, with room."""
    assert ALLOWANCE < 0.05
    for with_drafts, without in _play(Speculation(7, cost), texts):
        assert with_drafts <= (1 + ALLOWANCE) * without + 1e-9


def test_drafts_cost_next_to_nothing_where_no_guess_is_right():
    """Tokens in no order, few enough that each has been seen: guesses are made, counted, and given up."""
    dice = random.Random(1)
    text = [dice.randrange(50) for _ in range(600)]
    *_, (with_drafts, without) = _play(Speculation(15, EIGHT_ARE_CHEAP), [(text[:100], text[100:])])
    assert with_drafts < 1.02 * without


def test_drafts_halve_the_time_of_a_text_that_is_edited():
    """A function that comes again with one name changed everywhere."""
    dice = random.Random(2)
    text = [dice.randrange(40) for _ in range(200)]
    edited = [1000 if token == 7 else token for token in text]
    *_, (with_drafts, without) = _play(Speculation(7, EIGHT_ARE_CHEAP), [(text, edited)])
    assert without > 2 * with_drafts


def test_speculation_forgets_a_sequence_that_has_ended():
    """Another one under the same id starts anew."""
    speculation, sequence = Speculation(7, FREE), _decoding()
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

    def propose(self, running, other_rows=0):
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

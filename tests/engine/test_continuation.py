"""An interrupted answer goes on as the same answer, wherever it was cut, and as often as it was."""

from functools import partial

import pytest
from attrs import evolve
from hypothesis import given

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.continuation import take_up
from seedance_server.engine.errors import ContextLengthExceeded, ContinuationMismatch
from seedance_server.engine.generation import Generation
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import (
    FinishReason,
    GenerationRequest,
    Sequence,
    SequenceOutput,
    StageTiming,
)
from tests.engine import driving
from tests.engine.driving import MAX_STEPS, collect, drive, make_request
from tests.engine_strategies import excerpts, interruptions, picks, token_id_lists
from tests.tiny_models import KINDS
from tests.tokenizers_made import MAKERS

SEED = 42
PROMPT = tuple(range(30, 60))
ALL_KINDS_OF_PARAMETERS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.2, "top_p": 0.97, "top_k": 300, "min_p": 0.001},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "logit_bias": {70: 4.0, 90: -100.0},
    },
    "min_tokens": {"temperature": 2.0, "min_tokens": 20, "stop_token_ids": tuple(range(3, 250))},
    "logprobs": {"temperature": 1.0, "logprobs": True, "top_logprobs": 4},
}

make_engine = partial(driving.make_engine, speculative_tokens=0)
"""One token in one output, so that an answer can be cut at each of them."""


def _fragments(tokenizer):
    """Ids of tokens that hold a part of a character at most."""
    tokens = ((index, tokenizer.convert_ids_to_tokens(index)) for index in range(len(tokenizer)))
    return [index for index, token in tokens if len(token) == 1 or token.startswith("<0x")]


def _generation(tokenizer, limit, eos, **request):
    params = SamplingParams(seed=SEED, **request.pop("params"))
    request = GenerationRequest(id=1, prompt_ids=(5, 6), params=params, arrival_s=0.0, **request)
    sequence = Sequence(request, order=0, seed=SEED, limit=limit, table=BlockTable(([],)))
    return Generation(sequence, tokenizer, eos)


def _accept_all(generation, ids):
    outputs = []
    for token_id in ids:
        outputs.append(generation.accept(token_id))
        if outputs[-1].finish:
            break
    return outputs


def _text(outputs):
    return "".join(output.text for output in outputs)


def _ids(outputs):
    return tuple(token_id for output in outputs for token_id in output.token_ids)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_answer_has_the_same_outputs_after_each_cut_when_its_tokens_are_any(maker):
    """Half a character, half a stop string, min_tokens, an end: each output is what it would have been."""
    tokenizer = maker()

    @given(token_id_lists(len(tokenizer), _fragments(tokenizer)), excerpts, picks, picks, picks)
    def check(ids, places, shortest, longest, end):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        stops = tuple(filter(None, (text[at % len(text) :][:size] for at, size in places if text)))
        setting = {
            "limit": 3 + longest % 50,
            "eos": {ids[end % len(ids)]} if ids and end % 3 == 0 else set(),
            "params": {"stop": stops, "min_tokens": shortest % 10},
        }
        outputs = _accept_all(_generation(tokenizer, **setting), ids)
        for cut in range(len(outputs) + 1):
            told = {"generated_ids": _ids(outputs[:cut]), "delivered_text": _text(outputs[:cut])}
            taken_up = _generation(tokenizer, **setting, **told)
            ended = take_up(taken_up)
            if cut and outputs[cut - 1].finish:
                assert ended == SequenceOutput(id=1, finish=outputs[-1].finish)
            else:
                assert ended is None
                assert _accept_all(taken_up, ids[cut:]) == outputs[cut:]

    check()


def _outputs(engine, requests):
    """{id: its outputs, one by one}."""
    for request in requests:
        engine.add(request)
    outputs = {request.id: [] for request in requests}
    for _ in range(MAX_STEPS):
        for output in engine.step():
            outputs[output.id].append(output)
        engine.check_integrity()
        if not engine.has_work():
            return outputs
    raise AssertionError("no end in sight")


def _same(continued, expected):
    """Equal but for the timing, the rounding of log-probabilities, and what was in the pool."""
    assert (continued.text, continued.token_ids) == (expected.text, expected.token_ids)
    for one, other in zip(continued.logprobs, expected.logprobs, strict=True):
        assert (one.token_id, one.text) == (other.token_id, other.text)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [entry[:2] for entry in one.top] == [entry[:2] for entry in other.top]
        assert [entry[2] for entry in one.top] == pytest.approx([entry[2] for entry in other.top], abs=1e-4)
    assert (continued.finish is None) == (expected.finish is None)
    if continued.finish:
        one, other = (
            evolve(finish, timing=StageTiming(), usage=evolve(finish.usage, cached_tokens=0))
            for finish in (continued.finish, expected.finish)
        )
        assert one == other


def _cut_everywhere(engine, outputs, request):
    """Take the answer up after each of its outputs, all at once; all of them must end alike."""
    cuts = {
        cut + 1: evolve(
            request,
            id=cut + 1,
            generated_ids=_ids(outputs[:cut]),
            delivered_text=_text(outputs[:cut]),
        )
        for cut in range(len(outputs))
    }
    for cut, continued in _outputs(engine, cuts.values()).items():
        assert len(continued) == len(outputs) - cut + 1
        for one, other in zip(continued, outputs[cut - 1 :], strict=True):
            _same(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", ALL_KINDS_OF_PARAMETERS.values(), ids=ALL_KINDS_OF_PARAMETERS)
def test_answer_is_the_same_when_it_is_cut_after_any_token(kind, params, load_tiny):
    """In fp32 the tokens, texts, log-probabilities and the end are those of the undisturbed run."""
    request = make_request(0, PROMPT, seed=SEED, max_tokens=36, **params)
    outputs = _outputs(make_engine(load_tiny(kind)), [request])[0]
    assert len(outputs) > 10
    engine = make_engine(load_tiny(kind), prefill_budget_tokens=13, max_sequences=8)
    _cut_everywhere(engine, outputs, request)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answer_is_the_same_when_it_is_cut_inside_a_stop_string(kind, load_tiny):
    """What may become a stop string is held back over the cut, and then found, or shown after all."""
    free = make_request(0, PROMPT, seed=SEED, temperature=1.5, max_tokens=36)
    text = _text(_outputs(make_engine(load_tiny(kind)), [free])[0])
    stop = text[20:26]
    nearly = tuple(text[at : at + 4] + "\x00" for at in (4, 9, 14))
    request = evolve(free, params=evolve(free.params, stop=(stop, *nearly)))
    outputs = _outputs(make_engine(load_tiny(kind)), [request])[0]
    assert (outputs[-1].finish.reason, outputs[-1].finish.stop) == (FinishReason.STOP, stop)
    assert _text(outputs) == text[: text.index(stop)]
    assert any(output.text == "" for output in outputs[:-1])
    _cut_everywhere(make_engine(load_tiny(kind)), outputs, request)


@pytest.fixture(scope="module")
def undisturbed(load_tiny):
    """A request that asks for much, and its outputs one by one."""
    params = {"temperature": 1.0, "seed": SEED, "max_tokens": 25, "frequency_penalty": 0.3, "stop": ("qz",)}
    request = make_request(1, PROMPT, **params)
    return request, _outputs(make_engine(load_tiny("gemma3")), [request])[1]


@pytest.mark.slow
@given(history=interruptions)
def test_answer_is_the_same_in_any_history_of_parks_and_restarts(history, undisturbed, load_tiny):
    """Cut before its first token, cut twice at one place, moved to another engine: still the same answer."""
    request, expected = undisturbed
    neighbour = make_request(2, PROMPT[:9], max_tokens=50)

    def start():
        engine = make_engine(load_tiny("gemma3"), prefill_budget_tokens=11, blocks=70)
        engine.add(neighbour)
        return engine

    engine, outputs = start(), []
    engine.add(request)
    for steps, interruption in history:
        for _ in range(steps):
            outputs += [output for output in engine.step() if output.id == request.id]
        if outputs and outputs[-1].finish:
            break
        if interruption == "park":
            engine.cancel(request.id)
            cancelled = [output for output in engine.step() if output.id == request.id]
            assert [output.finish.reason for output in cancelled] == [FinishReason.CANCELLED]
        else:
            engine = start()
        engine.add(evolve(request, generated_ids=_ids(outputs), delivered_text=_text(outputs)))
    for _ in range(MAX_STEPS):
        if outputs and outputs[-1].finish:
            break
        outputs += [output for output in engine.step() if output.id == request.id]
        engine.check_integrity()
    for one, other in zip(outputs, expected, strict=True):
        _same(one, other)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"max_tokens": 8}, FinishReason.LENGTH),
        ({"stop_token_ids": tuple(range(3, 250))}, FinishReason.STOP),
        ({"stop": ("e", "a", "t", " ")}, FinishReason.STOP),
    ],
)
def test_answer_that_has_ended_already_says_so_at_the_next_step(params, reason, load_tiny):
    """The crash fell between the last text and the end: nothing is said twice, and nothing is computed."""
    request = make_request(0, PROMPT, seed=SEED, **params)
    outputs = _outputs(make_engine(load_tiny("qwen2")), [request])[0]
    assert outputs[-1].finish.reason is reason
    for text in (_text(outputs), None):
        engine = make_engine(load_tiny("qwen2"))
        engine.add(evolve(request, generated_ids=_ids(outputs), delivered_text=text))
        assert engine.has_work()
        (ended,) = engine.step()
        assert (ended.text, ended.token_ids) == ("", ())
        assert evolve(ended.finish, timing=StageTiming()) == evolve(outputs[-1].finish, timing=StageTiming())
        assert (engine.statistics().steps, engine.has_work()) == (0, False)


def test_answer_that_outgrew_a_shorter_context_ends_with_what_it_held_back(load_tiny):
    """A restart with a shorter context ends the answer by its length, and owes it no text."""
    request = make_request(0, PROMPT, seed=SEED, temperature=1.5, ignore_eos=True)
    free = drive(
        make_engine(load_tiny("qwen2")), [evolve(request, params=evolve(request.params, max_tokens=30))]
    )
    text = free[0].text
    request = evolve(request, params=evolve(request.params, stop=(text[8:40] + "\x00",)))
    engine, outputs = make_engine(load_tiny("qwen2")), []
    engine.add(request)
    while len(_text(outputs)) < 8 or len(_ids(outputs)) < 15:
        outputs += engine.step()
    told = {"generated_ids": _ids(outputs), "delivered_text": _text(outputs)}
    assert text.startswith(_text(outputs))
    for context in (len(PROMPT) + 15, len(PROMPT) + 3):
        (ended,) = _outputs(make_engine(load_tiny("qwen2"), max_context=context), [evolve(request, **told)])[
            0
        ]
        assert (ended.finish.reason, ended.finish.usage.completion_tokens) == (FinishReason.LENGTH, 15)
        assert ended.text
        assert text.startswith(_text(outputs) + ended.text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ids, text: (ids, text + "?"), "another text"),
        (lambda ids, text: (ids, text[:-1]), "another text"),
        (lambda ids, text: ((*ids[:-1], 384), text), "beyond the 384"),
        (lambda ids, text: ((-1, *ids[1:]), None), "beyond the 384"),
        (lambda ids, text: ((*ids[:3], 2, *ids[4:]), None), "ends with token 4 of 8"),
        (lambda ids, text: ((), text), "another text"),
    ],
)
def test_answer_with_a_beginning_that_is_not_the_model_s_is_refused(change, reason, load_tiny):
    """Another tokenizer, or a damaged journal, is found before the client gets a word of nonsense."""
    request = make_request(0, PROMPT, seed=SEED, max_tokens=12)
    answer = drive(make_engine(load_tiny("qwen2")), [request])[0]
    cut = tuple(answer.token_ids[:8])
    text = load_tiny("qwen2").tokenizer.decode(cut)
    ids, delivered = change(cut, text)
    engine = make_engine(load_tiny("qwen2"))
    wrong = evolve(request, id=1, generated_ids=ids, delivered_text=delivered)
    answers = drive(engine, [wrong, request])
    assert isinstance(answers[1].finish.error, ContinuationMismatch)
    assert reason in str(answers[1].finish.error)
    assert answers[1].finish.usage.completion_tokens == len(ids)
    assert answers[0].token_ids == answer.token_ids


def test_answer_whose_prompt_does_not_fit_any_more_is_refused_with_its_tokens_counted(load_tiny):
    """The request's own checks come first, and the usage still says what was generated."""
    request = make_request(0, PROMPT, seed=SEED)
    (refused,) = _outputs(
        make_engine(load_tiny("qwen2"), max_context=20), [evolve(request, generated_ids=(70, 71))]
    )[0]
    assert isinstance(refused.finish.error, ContextLengthExceeded)
    assert (refused.finish.usage.prompt_tokens, refused.finish.usage.completion_tokens) == (len(PROMPT), 2)


def test_answer_cancelled_before_it_goes_on_ends_with_what_it_held_back(load_tiny):
    """A cancel finds the answer whole, though no step has been taken."""
    tokenizer = load_tiny("qwen2").tokenizer
    ids = tuple(tokenizer("The quick brown").input_ids)
    engine = make_engine(load_tiny("qwen2"))
    engine.add(evolve(make_request(0, PROMPT, seed=SEED, stop=("brown fox",)), generated_ids=ids))
    engine.cancel(0)
    (ended,) = engine.step()
    assert (ended.text, ended.finish.reason) == ("brown", FinishReason.CANCELLED)
    assert ended.finish.usage.completion_tokens == len(ids)


def test_answer_taken_up_times_its_first_new_token(load_tiny):
    """The stages are those of the continuation: what was generated counts as prompt."""
    now = [100.0]

    def clock():
        now[0] += 0.5
        return now[0]

    engine = make_engine(load_tiny("llama"), clock=clock, prefill_budget_tokens=30)
    request = make_request(0, range(100, 140), seed=SEED, max_tokens=13, ignore_eos=True)
    finish = drive(engine, [evolve(request, generated_ids=tuple(range(140, 150)))])[0].finish
    # As for a prompt of 50 tokens: two steps, each of which reads the clock four times.
    assert finish.timing == StageTiming(queue_s=100.5, prefill_s=2.5, first_decode_s=1.0)


def test_answer_taken_up_beside_others_changes_nothing_for_them(load_tiny):
    """A neighbour that comes back is a neighbour like any other."""
    others = [make_request(n, PROMPT[n:], seed=n, temperature=1.0, max_tokens=20) for n in range(1, 4)]
    alone = {n: drive(make_engine(load_tiny("gemma3")), [other])[n] for n, other in enumerate(others, 1)}
    request = evolve(make_request(0, PROMPT, seed=SEED, max_tokens=30), generated_ids=(70, 71, 72))
    engine, answers = make_engine(load_tiny("gemma3"), prefill_budget_tokens=9), {}
    for other in others:
        engine.add(other)
    for step in range(60):
        if step == 7:
            engine.add(request)
        collect(engine, answers)
    assert {n: answers[n].token_ids for n in alone} == {n: answer.token_ids for n, answer in alone.items()}

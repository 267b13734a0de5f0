import json
import random
import re

import pytest
import torch
from attrs import evolve
from llguidance.hf import from_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from seedance_server.engine import constraint
from seedance_server.engine.constraint import Constraints
from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import FinishReason
from tests.engine.driving import drive, make_engine, make_request
from tests.tiny_models import KINDS, build_tiny_tokenizer
from tests.tokenizers_made import byte_level, space_replacing_bpe

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMA = json.dumps(PERSON)
PROMPT = range(100, 140)


def constraints() -> Constraints:
    tokenizer = build_tiny_tokenizer()
    return Constraints(tokenizer, len(tokenizer) + 9, {tokenizer.eos_token_id})


def test_constraint_follows_the_tokens_and_knows_the_end():
    """Before each token of a good answer that token is allowed, and behind the last one none but the end."""
    tokenizer = build_tiny_tokenizer()
    form = constraints().make(SamplingParams(json_schema=SCHEMA))
    for token_id in tokenizer.encode('{"name":"Ann","age":7', add_special_tokens=False):
        assert form.allowed()[token_id]
        assert not form.is_complete
        form.accept(token_id)
    brace, letter = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ("}", "x"))
    assert form.allowed()[brace]
    assert not form.allowed()[letter]
    form.accept(brace)
    assert form.is_complete
    assert form.allowed().nonzero().flatten().tolist() == [tokenizer.eos_token_id]
    assert form.failure() is None


def test_constraint_covers_ids_that_are_no_tokens():
    """A row of logits may be wider than the vocabulary; what is beyond is never allowed."""
    allowed = constraints().make(SamplingParams(regex="a+")).allowed()
    assert allowed.shape == (len(build_tiny_tokenizer()) + 9,)
    assert not allowed[-9:].any()


def test_tokens_allowed_are_those_that_the_parser_names_one_by_one():
    """Its bits are spread over the row in their order."""
    form = constraints().make(SamplingParams(regex="[a-f]{2,9}x"))
    for token_id in build_tiny_tokenizer().encode("abcf", add_special_tokens=False):
        named = torch.tensor(list(form._matcher.compute_logit_bias())) > 0
        assert 0 < named.sum() < len(named)
        assert torch.equal(form.allowed(), named)
        form.accept(token_id)


def test_constraint_of_one_answer_is_not_another_s():
    """One compilation, many answers."""
    made = constraints()
    tokenizer = build_tiny_tokenizer()
    first, second = (made.make(SamplingParams(regex="ab?")) for _ in range(2))
    for token_id in tokenizer.encode("ab", add_special_tokens=False):
        first.accept(token_id)
    assert first.is_complete
    assert not second.is_complete


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(json_schema='{"type": "nonsense"}'), "json_schema"),
        (SamplingParams(json_schema='{"$ref": "http://example.com/schema"}'), "json_schema"),
        (SamplingParams(json_schema='{"not": {}}'), "json_schema"),
        (SamplingParams(json_schema="[1]"), "json_schema"),
        (SamplingParams(json_schema="{"), "json_schema"),
        (SamplingParams(regex="(a"), "regex"),
        (SamplingParams(regex="(?=a)b"), "regex"),
    ],
)
def test_constraint_that_can_not_be_kept_is_refused(params: SamplingParams, field: str):
    """With a reason of one line; nothing is silently let go, and nothing is fetched."""
    with pytest.raises(InvalidParameter) as refused:
        constraints().check(params)
    assert refused.value.field == field
    assert "\n" not in refused.value.reason


@pytest.mark.parametrize("made", [Constraints(None, 9, {1}), Constraints(build_tiny_tokenizer(), 999, ())])
def test_constraint_needs_a_tokenizer_that_can_be_read(made: Constraints):
    """And a token that ends an answer; other requests don't notice."""
    assert not made.prepare()
    assert made.make(SamplingParams()) is None
    with pytest.raises(InvalidParameter, match="tokenizer"):
        made.check(SamplingParams(regex="a"))


def test_constraint_knows_no_token_that_the_model_has_not():
    """A tokenizer may have been given a token for padding that there is no logit for."""
    tokenizer = build_tiny_tokenizer()
    width = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    made = Constraints(tokenizer, width, {tokenizer.eos_token_id})
    for field, text in (("regex", r"a\[PAD\]"), ("json_schema", '{"const": "[PAD]"}')):
        form = made.make(SamplingParams(**{field: text}))
        said = b""
        while not form.is_complete:
            allowed = form.allowed()
            assert allowed.shape == (width,)
            token_id = int(allowed.nonzero()[0])
            said += made._read().decode_bytes([token_id])
            form.accept(token_id)
        assert said in (b"a[PAD]", b'"[PAD]"')


@pytest.mark.parametrize("error", [KeyError("pattern"), IndexError("list"), ValueError("what")])
def test_vocabulary_that_can_not_be_read_is_refused_and_not_read_again(monkeypatch, error):
    """A start goes on without forms; a request is told, and doesn't wait for another try."""
    reads = []

    def read(*given):
        reads.append(given)
        raise error

    monkeypatch.setattr(constraint, "read_token_bytes", read)
    made = constraints()
    assert not made.prepare()
    with pytest.raises(InvalidParameter, match="tokenizer"):
        made.check(SamplingParams(regex="a"))
    assert len(reads) == 1


@pytest.mark.parametrize("build", [build_tiny_tokenizer, byte_level, space_replacing_bpe])
def test_texts_are_neither_cut_nor_filled_up_when_the_tokenizer_would(build):
    """A tokenizer.json may say both, for training."""
    made = build()
    text = "<s>The fox  jumps <tool> over <|im_end|>"
    expected = made.backend_tokenizer.encode(text, add_special_tokens=False).ids
    backend = Tokenizer.from_str(made.backend_tokenizer.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=99)
    form = Constraints(PreTrainedTokenizerFast(tokenizer_object=backend), len(made), {3})
    assert form._read().tokenize_str(text) == expected


def test_constraint_reads_the_vocabulary_when_it_is_first_needed_and_once(monkeypatch):
    """A server that nobody asks for a form neither waits for it nor keeps it."""
    reads = []
    read = constraint.read_token_bytes
    monkeypatch.setattr(constraint, "read_token_bytes", lambda *given: reads.append(given) or read(*given))
    made = constraints()
    made.check(SamplingParams())
    assert not reads
    made.check(SamplingParams(regex="a"))
    made.check(SamplingParams(regex="b"))
    assert made.prepare()
    assert len(reads) == 1


def test_constraint_is_refused_where_forms_are_not_offered():
    """And the vocabulary isn't touched; other requests don't notice."""
    made = Constraints(None, 9, {1}, offered=False)
    made.check(SamplingParams())
    with pytest.raises(InvalidParameter, match="isn't offered"):
        made.check(SamplingParams(regex="a"))


def answers(load_tiny, kind, params, **more):
    """Text and finish of one request for each of some parameters, all in one batch."""
    engine = make_engine(load_tiny(kind), **more)
    return drive(engine, [make_request(n, PROMPT, **each) for n, each in enumerate(params)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_constrained_answers_are_what_they_must_be(load_tiny, kind):
    """A model without any sense writes JSON under the schema, whatever the temperature, beside free ones."""
    sampled = [
        {"json_schema": SCHEMA, "temperature": 2.0, "seed": seed, "max_tokens": 200} for seed in range(12)
    ]
    digits = [{"regex": "[0-9]{3}-[0-9]{2}", "temperature": 1.0, "seed": 3}]
    free = [{"temperature": 1.0, "seed": 5, "max_tokens": 30, "ignore_eos": True}]
    given = answers(load_tiny, kind, [*sampled, *digits, *free])
    for n in range(12):
        assert given[n].finish.reason is FinishReason.STOP
        person = json.loads(given[n].text)
        assert set(person) == {"name", "age"}
        assert len(person["name"]) <= 5
        assert 0 <= person["age"] <= 99
    assert len({given[n].text for n in range(12)}) > 1
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", given[12].text)
    alone = answers(load_tiny, kind, free)
    assert alone[0].token_ids == given[13].token_ids


def test_constrained_answer_goes_on_where_it_was(load_tiny):
    """Taken up after any token it is the same as without the cut."""
    params = {"json_schema": SCHEMA, "temperature": 1.5, "seed": 11, "max_tokens": 100}
    whole = answers(load_tiny, "qwen2", [params])[0]
    cuts = range(0, len(whole.token_ids), 3)
    requests = [
        evolve(make_request(cut, PROMPT, **params), generated_ids=tuple(whole.token_ids[:cut]))
        for cut in cuts
    ]
    rest = drive(make_engine(load_tiny("qwen2")), requests)
    for cut in cuts:
        assert (*whole.token_ids[:cut], *rest[cut].token_ids) == tuple(whole.token_ids)


def test_constrained_answers_have_no_drafts(load_tiny):
    """What may follow a guess isn't known; the others keep theirs."""
    engine = make_engine(load_tiny("qwen2"), speculative_tokens=7)
    params = {"regex": "(ab){30}", "temperature": 0.0, "max_tokens": 80}
    answer = drive(engine, [make_request(0, PROMPT, **params)])[0]
    assert answer.text == "ab" * 30
    assert engine.statistics().drafted_tokens == 0


def test_constrained_answer_cut_by_its_length_says_so(load_tiny):
    """As OpenAI's: the reason is LENGTH, and the text is no whole."""
    answer = answers(load_tiny, "qwen2", [{"json_schema": SCHEMA, "max_tokens": 3, "seed": 1}])[0]
    assert answer.finish.reason is FinishReason.LENGTH


def test_constraint_that_an_engine_can_not_keep_ends_its_request_alone(load_tiny):
    """One that wasn't checked before: ERROR with the parameter's name; the neighbour answers."""
    given = answers(load_tiny, "qwen2", [{"regex": "(a"}, {"max_tokens": 2}])
    assert given[0].finish.error.field == "regex"
    assert given[1].finish.error is None


def test_allowed_is_on_the_processor_as_truth_values():
    """What the sampler takes."""
    allowed = constraints().make(SamplingParams(regex="a")).allowed()
    assert allowed.dtype is torch.bool
    assert allowed.device.type == "cpu"


FORMS = {
    "json_schema": [SCHEMA, '{"type": "array", "items": {"type": "string"}}', '{"type": ["number", "null"]}'],
    "regex": ["[a-z]+@[a-z]+[.](com|org)", "(é|日本|🚀| ){2,9}", "<[a-z]+>.*</[a-z]+>"],
}


@pytest.mark.parametrize("build", [build_tiny_tokenizer, byte_level, space_replacing_bpe])
def test_masks_are_those_of_llguidance_s_own_reading(build):
    """Whatever the form and wherever in an answer: random answers that keep to it, token by token."""
    dice = random.Random(3)
    tokenizer = build()
    width, ends = len(tokenizer) + 5, [0, 3]
    ours = Constraints(tokenizer, width, ends)
    theirs = Constraints(tokenizer, width, ends)
    theirs._read = lambda: from_tokenizer(tokenizer, width, ends)
    assert ours._read().eos_tokens == ends
    masks = 0
    for field, texts in FORMS.items():
        for text in texts:
            params = SamplingParams(**{field: text})
            one, other = ours.make(params), theirs.make(params)
            for _ in range(40):
                allowed = one.allowed()
                assert torch.equal(allowed, other.allowed())
                masks += 1
                ids = [id_ for id_ in allowed.nonzero().flatten().tolist() if id_ not in ends]
                if not ids:
                    break
                chosen = dice.choice(ids)
                one.accept(chosen)
                other.accept(chosen)
    assert masks > 60

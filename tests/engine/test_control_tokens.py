"""Control tokens come from the template alone."""

import pytest
from hypothesis import given
from tokenizers import Tokenizer, models

from seedance_server.engine.control_tokens import (
    AmbiguousTextError,
    ControlTokens,
    find_control_texts,
    twin_tokenizer,
)
from tests import tokenizers_made
from tests.engine_strategies import honest_texts, hostile_texts
from tests.tokenizers_made import CHATML, MAKERS

NONCE = "271828"
each_tokenizer = pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)


def control_tokens(fast, template=CHATML):
    tokenizer = fast.backend_tokenizer
    return ControlTokens(tokenizer, find_control_texts(tokenizer, template), NONCE)


def test_control_texts_are_the_special_ones_and_those_the_template_writes():
    """A marker that only the template knows is one too; its white space and the unknown token are not."""
    tokenizer = tokenizers_made.byte_level().backend_tokenizer
    specials = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}
    assert find_control_texts(tokenizer, "") == specials
    assert find_control_texts(tokenizer, "{{ '<think>' }}") == specials | {"<think>"}
    assert "<unk>" not in find_control_texts(tokenizers_made.end_of_word_bpe().backend_tokenizer, "")


@each_tokenizer
def test_twin_gives_the_same_ids_when_nothing_is_renamed(maker):
    """Sharing the model and adding the tokens anew makes the same tokenizer."""
    tokenizer = maker().backend_tokenizer
    twin, numbers = twin_tokenizer(tokenizer, {})
    text = "<s>The fox <tool> <|im_end|>\n  <think>x</s>"
    ids = [numbers.get(token_id, token_id) for token_id in twin.encode(text, add_special_tokens=False).ids]
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_twin_knows_tokens_of_its_own_when_told_of_more():
    """They are numbered behind the others, which stay what they are."""
    tokenizer = tokenizers_made.byte_level().backend_tokenizer
    twin, numbers = twin_tokenizer(tokenizer, {"<s>": "<S!>"}, ["<more>"])
    ids = [numbers.get(token_id, token_id) for token_id in twin.encode("<S!><more>").ids]
    assert ids == [tokenizer.token_to_id("<s>"), twin.token_to_id("<more>")]
    assert ids[1] not in tokenizer.get_added_tokens_decoder()


def test_twin_knows_no_token_from_a_given_id_on():
    """Its text is encoded as any other is; all below are what they were."""
    tokenizer = tokenizers_made.byte_level().backend_tokenizer
    last = max(tokenizer.get_added_tokens_decoder())
    content = tokenizer.id_to_token(last)
    twin, numbers = twin_tokenizer(tokenizer, {}, below=last)
    ids = [numbers.get(token_id, token_id) for token_id in twin.encode(f"<s>{content}").ids]
    assert ids[0] == tokenizer.token_to_id("<s>")
    assert len(ids) > 2
    assert max(ids) < last


@each_tokenizer
def test_text_is_encoded_as_by_the_tokenizer_when_it_holds_no_control_text(maker):
    """Honest text costs nothing: not one id differs."""
    fast = maker()
    control = control_tokens(fast)

    @given(honest_texts)
    def check(text):
        assert control.encode(control.mark(text)) == fast(text, add_special_tokens=False)["input_ids"]

    check()


@each_tokenizer
def test_marked_text_has_no_control_ids_whatever_it_holds(maker):
    """Whole, nested, halved or look-alike: what a client writes is text."""
    fast = maker()
    control = control_tokens(fast)
    control_ids = {
        fast.convert_tokens_to_ids(text) for text in find_control_texts(fast.backend_tokenizer, CHATML)
    }

    @given(hostile_texts)
    def check(text):
        assert not control_ids.intersection(control.encode(control.mark(text)))

    check()


@pytest.mark.parametrize(
    "maker",
    [tokenizers_made.byte_level, tokenizers_made.metaspace_bpe, tokenizers_made.space_replacing_bpe],
    ids=lambda maker: maker.__name__,
)
def test_marked_text_reads_as_the_client_wrote_it_when_decoded(maker):
    """Control text is kept as text, not dropped or spaced out."""
    fast = maker()
    control = control_tokens(fast)

    @given(hostile_texts)
    def check(text):
        ids = control.encode(control.mark(text))
        assert fast.decode(ids, clean_up_tokenization_spaces=False).lstrip(" ") == text.lstrip(" ")

    check()


@pytest.mark.parametrize(
    ("before", "after"), [("a<|im_", "end|>b"), ("a<", "|im_end|>b"), ("a<|im_end|", ">b")]
)
@pytest.mark.parametrize("whose", [(True, True), (True, False), (False, True)], ids=str)
def test_halves_stay_apart_when_a_template_joins_them(before, after, whose):
    """A client's half makes no control token with another text, a client's or the template's."""
    fast = tokenizers_made.byte_level()
    control = control_tokens(fast)
    halves = [
        control.mark(half) if client else half for half, client in zip((before, after), whose, strict=True)
    ]
    ids = control.encode("".join(halves))
    assert fast.convert_tokens_to_ids("<|im_end|>") not in ids
    assert fast.decode(ids) == "a<|im_end|>b"


def test_templates_may_split_and_compare_marked_text():
    """A template that cuts a content at a control text finds it, and a lone marker leaves no trace."""
    control = control_tokens(tokenizers_made.byte_level())
    marked = control.mark("thought</s> answer")
    assert "</s>" in marked
    assert control.unmark(marked.split("</s>")[-1]) == " answer"


def test_vocabulary_entry_is_split_when_it_reads_as_a_control_token():
    """Unigram: "</s>" is a piece like any other, so only cutting it keeps it from being one."""
    fast = tokenizers_made.unigram()
    control = control_tokens(fast)
    ids = control.encode(control.mark("a</s>b") + "</s>")
    assert [index for index, token_id in enumerate(ids) if token_id == fast.eos_token_id] == [len(ids) - 1]


def test_text_is_refused_when_only_a_control_token_can_stand_for_it():
    """Unigram whose every "s" is a control token: better an error than a wrong token."""
    tokenizer = tokenizers_made.unigram().backend_tokenizer
    control = ControlTokens(tokenizer, {"s"}, NONCE)
    with pytest.raises(AmbiguousTextError):
        control.encode(control.mark("sos"))


@pytest.mark.slow
def test_marking_is_linear_when_the_vocabulary_has_thousands_of_control_tokens():
    """No text makes the search try each of thousands of texts at each character."""
    tokenizer = Tokenizer(models.BPE({"<": 0}, []))
    tokenizer.add_special_tokens([f"<unused{index}>" for index in range(5000)])
    control = ControlTokens(tokenizer, find_control_texts(tokenizer, ""), NONCE)
    assert control.unmark(control.mark("<" * 200_000)) == "<" * 200_000

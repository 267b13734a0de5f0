"""Tests of `seedance_server.engine.token_bytes`: what it reads is what llguidance's own reader does."""

import pytest
from llguidance.hf import from_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders
from transformers import PreTrainedTokenizerFast

from seedance_server.engine.token_bytes import read_token_bytes
from tests import tokenizers_made
from tests.tiny_models import build_tiny_tokenizer

MADE = {
    "tiny": build_tiny_tokenizer,
    "byte level": tokenizers_made.byte_level,
    "space replacing": tokenizers_made.space_replacing_bpe,
}


@pytest.mark.parametrize("name", MADE)
def test_bytes_are_those_that_llguidance_reads(name) -> None:
    """Every token and every mark, the added ones too; beyond the vocabulary there is nothing."""
    tokenizer = MADE[name]()
    tokenizer.add_tokens(["<table>", "pain au chocolat", AddedToken("<|mark|>", special=True)])
    count = len(tokenizer)
    theirs = from_tokenizer(tokenizer, count + 5, [0])
    ours = read_token_bytes(tokenizer, count + 5)
    marks = {id_ for id_ in range(count) if theirs.is_special_token(id_)}
    # Their sign for a mark is the byte 255 in front, so they take a token that begins with it for one.
    assert set(ours.special_ids) == {id_ for id_ in marks if not ours.tokens[id_].startswith(b"\xff")}
    texts = [theirs.decode_bytes([id_]) for id_ in range(count)]
    assert [ours.tokens[id_] for id_ in range(count) if id_ not in marks] == [
        text for id_, text in enumerate(texts) if id_ not in marks
    ]
    assert ours.tokens[count:] == (b"",) * 5


@pytest.mark.parametrize("name", ["llama_legacy", "unigram", "word_piece", "end_of_word_bpe"])
def test_other_kinds_are_left_to_whoever_can_read_them(name) -> None:
    """Rather none than wrong ones."""
    assert read_token_bytes(getattr(tokenizers_made, name)(), 1000) is None


@pytest.mark.parametrize("name", MADE)
def test_tokens_beyond_the_model_are_left_out(name) -> None:
    """A tokenizer may have been given a token for padding that the model has no logit for."""
    tokenizer = MADE[name]()
    whole = read_token_bytes(tokenizer, len(tokenizer))
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_special_tokens(["[PAD]"])
    padded = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert len(padded) == len(tokenizer) + 1
    assert read_token_bytes(padded, len(tokenizer)) == whole


def test_decoder_that_strips_a_space_and_replaces_none_is_read() -> None:
    """Its marks for the space are themselves."""
    backend = Tokenizer.from_str(tokenizers_made.space_replacing_bpe().backend_tokenizer.to_str())
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ours, theirs = read_token_bytes(tokenizer, len(tokenizer)), from_tokenizer(tokenizer)
    text = [id_ for id_ in range(len(tokenizer)) if not theirs.is_special_token(id_)]
    assert [ours.tokens[id_] for id_ in text] == [theirs.decode_bytes([id_]) for id_ in text]

"""Incremental detokenizing: the pieces are the whole, and no character is ever shown broken."""

import pytest
from hypothesis import given

from seedance_server.engine.detokenizer import MAX_HELD_BYTES, Detokenizer
from tests import tokenizers_made
from tests.engine_strategies import token_id_lists
from tests.tokenizers_made import MAKERS

HARD_TEXTS = [
    "emoji 😀 family 👩‍👩‍👧 end",
    "你好,世界 שלום ďábel नमस्ते",
    "  two  spaces\n\n    def f(x):\n\treturn x \n",
    "🦄🦄🦄",
]


# How a byte-level vocabulary writes each byte: printable Latin-1 as itself, the others from U+0100 on.
PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_LETTERS = [chr(byte if byte in PRINTABLE else 256 + OTHERS.index(byte)) for byte in range(256)]


def fragments(tokenizer):
    """Ids of tokens that hold a part of a character at most."""
    tokens = ((index, tokenizer.convert_ids_to_tokens(index)) for index in range(len(tokenizer)))
    return [index for index, token in tokens if len(token) == 1 or token.startswith("<0x")]


def pieces(tokenizer, ids):
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.append([token_id]) for token_id in ids), detokenizer.flush()]


def whole(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def byte_ids(tokenizer, data):
    """One token for each byte."""
    if "<0x00>" in tokenizer.get_vocab():
        return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in data]
    return [tokenizer.convert_tokens_to_ids(BYTE_LETTERS[byte]) for byte in data]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_pieces_joined_are_the_decode_of_all_ids_when_ids_are_random(maker):
    """The rule, for every kind of tokenizer: no space, character or byte is lost, doubled or moved."""
    tokenizer = maker()

    @given(token_id_lists(len(tokenizer), fragments(tokenizer)))
    def check(ids):
        assert "".join(pieces(tokenizer, ids)) == whole(tokenizer, ids)

    check()


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_no_piece_has_a_broken_character_when_the_text_is_sound(maker, text):
    """A character that is spread over tokens appears whole or not at all."""
    tokenizer = maker()
    ids = tokenizer(text)["input_ids"]
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == whole(tokenizer, ids)
    assert "\ufffd" not in "".join(shown)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_ids_make_the_same_text_when_appended_together(maker):
    """How many ids a step brings makes no difference."""
    tokenizer = maker()
    ids = tokenizer(HARD_TEXTS[0])["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.append(ids) + detokenizer.flush() == whole(tokenizer, ids)


BYTE_TOKENIZERS = [
    tokenizers_made.byte_level,
    tokenizers_made.space_replacing_bpe,
    tokenizers_made.llama_legacy,
]


@pytest.mark.parametrize("maker", BYTE_TOKENIZERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_tail_is_replaced_once_at_the_end_when_a_character_is_cut_off(maker, missing):
    """An answer cut off inside a character shows nothing of it before the end, then what decode shows."""
    tokenizer = maker()
    ids = byte_ids(tokenizer, "a😀".encode()[:-missing])
    *shown, last = pieces(tokenizer, ids)
    assert "\ufffd" not in "".join(shown)
    assert "".join([*shown, last]) == whole(tokenizer, ids)
    if maker is tokenizers_made.byte_level:
        assert last == "\ufffd"


@pytest.mark.parametrize("maker", BYTE_TOKENIZERS, ids=lambda maker: maker.__name__)
def test_text_goes_on_when_a_byte_is_truly_invalid(maker):
    """After a lone byte that belongs to no character the next token shows both, and nothing is lost."""
    tokenizer = maker()
    ids = byte_ids(tokenizer, b"\xff") + tokenizer(" the fox", add_special_tokens=False)["input_ids"]
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == whole(tokenizer, ids)
    assert shown[0] + shown[1] != ""
    assert shown[-1] == ""


def test_no_text_is_held_for_ever_when_a_model_writes_only_invalid_bytes():
    """Byte-level: each invalid byte is shown when the next token comes."""
    tokenizer = tokenizers_made.byte_level()
    shown = pieces(tokenizer, byte_ids(tokenizer, b"\xff" * 50))
    assert shown == ["", *["\ufffd"] * 50]


@pytest.mark.parametrize("data", ["a\ufffd" * 20, "\ufffd" * 50])
def test_literal_replacement_character_is_shown_when_the_model_means_it(data):
    """U+FFFD as such is text like any other."""
    tokenizer = tokenizers_made.byte_level()
    ids = byte_ids(tokenizer, data.encode())
    assert "".join(pieces(tokenizer, ids)) == data


def test_invalid_bytes_are_shown_at_once_when_a_run_of_byte_tokens_is_known_to_be_bad():
    """Byte fallback: the first bad byte settles the run, and each later byte of it."""
    tokenizer = tokenizers_made.space_replacing_bpe()
    ids = byte_ids(tokenizer, b"ab\xffcd")
    assert pieces(tokenizer, ids) == ["", "", "\ufffd" * 3, "\ufffd", "\ufffd", ""]
    assert whole(tokenizer, ids) == "\ufffd" * 5


def test_characters_are_let_go_when_a_run_of_byte_tokens_is_long():
    """Byte fallback: what is held back has a bound, and whole characters leave it."""
    tokenizer = tokenizers_made.space_replacing_bpe()
    text = "🦄" * 40 + " the fox " + "🦄" * 40
    detokenizer, shown, given_ids = Detokenizer(tokenizer), "", []
    for token_id in byte_ids(tokenizer, text.encode()):
        shown += detokenizer.append([token_id])
        given_ids.append(token_id)
        assert len(text.encode()[: len(given_ids)]) - len(shown.encode()) <= MAX_HELD_BYTES
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text


def test_cost_per_token_stays_the_same_when_the_answer_grows():
    """The ids decoded for one token are bounded: no token pays for the answer before it."""
    tokenizer = tokenizers_made.byte_level()
    detokenizer, decoded = Detokenizer(tokenizer), []
    decode = detokenizer._decode
    detokenizer._decode = lambda ids: (decoded.append(len(ids)), decode(ids))[1]
    detokenizer.append(tokenizer(" the quick 😀 fox" * 20)["input_ids"] + byte_ids(tokenizer, b"\xff" * 100))
    assert max(decoded) < 12


def test_special_tokens_are_not_shown_when_the_model_writes_them():
    """The output shows no control markers, and the space after one is neither lost nor doubled."""
    tokenizer = tokenizers_made.metaspace_bpe()
    ids = tokenizer("<s>the<|im_end|> fox", add_special_tokens=False)["input_ids"]
    assert "".join(pieces(tokenizer, ids)) == whole(tokenizer, ids) == "the fox"


def test_nothing_is_shown_when_there_are_no_ids():
    """An empty answer is empty."""
    assert Detokenizer(tokenizers_made.byte_level()).flush() == ""

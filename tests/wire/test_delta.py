"""Code-point differences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.delta import apply_difference, context_after, difference
from seedance_wire.errors import DecodeError, LocalProtocolError
from tests.strategies import code_points, near_texts, texts


@given(texts | near_texts, code_points)
def test_difference_is_lossless_for_all_unicode(text: str, context: int) -> None:
    """Undoing a difference gives the text back, whatever the text and the context."""
    assert apply_difference(difference(text, context), context) == text


@given(st.lists(texts | near_texts, min_size=1))
def test_difference_chains_over_pieces_when_contexts_follow(pieces: list[str]) -> None:
    """The pieces of a stream, each from the last code point before it, give the whole text."""
    context: int | None = ord("a")
    decoded = ""
    for piece in pieces:
        assert context is not None
        decoded += apply_difference(difference(piece, context), context)
        context = context_after(piece, context)
    assert decoded == "".join(pieces)


@given(st.binary(max_size=40), code_points)
def test_apply_difference_raises_only_decode_error_for_any_bytes(encoded: bytes, context: int) -> None:
    """Whatever the bytes, the result is a text whose difference is these bytes, or a DecodeError."""
    try:
        text = apply_difference(encoded, context)
    except DecodeError:
        return
    assert difference(text, context) == encoded


@given(texts.filter(bool), code_points)
def test_apply_difference_never_invents_text_when_cut(text: str, context: int) -> None:
    """Every truncation is an error or a prefix of the text."""
    encoded = difference(text, context)
    for end in range(len(encoded)):
        try:
            decoded = apply_difference(encoded[:end], context)
        except DecodeError:
            continue
        assert text.startswith(decoded)


@pytest.mark.parametrize("surrogate", ["\ud800", "a\udfff", "\udc80b"])
def test_difference_refuses_a_lone_surrogate(surrogate: str) -> None:
    """Surrogates are no Unicode text, so one to be sent is our bug."""
    with pytest.raises(LocalProtocolError):
        difference(surrogate, 0)


@pytest.mark.parametrize(
    ("encoded", "context"),
    [
        (b"\x01", 0),  # below zero
        (b"\x02", 0x10FFFF),  # above the last code point
        (b"\x02", 0xD7FF),  # the first surrogate
        (b"\x01", 0xE000),  # the last surrogate
        (b"\x80\x80\x80\x80\x01", 97),  # longer than any difference
        (b"\x80\x00", 97),  # zero in two bytes
        (b"\x82\x80\x00", 97),  # one in three bytes
        (b"\x02\x80", 97),  # cut short
    ],
)
def test_apply_difference_refuses_what_difference_never_makes(encoded: bytes, context: int) -> None:
    """Every text has exactly one difference to a context; all other bytes are errors."""
    with pytest.raises(DecodeError):
        apply_difference(encoded, context)


@pytest.mark.parametrize(("text", "context", "after"), [("", None, None), ("", 97, 97), ("ab", None, 98)])
def test_context_after_is_the_last_code_point_seen(text: str, context: int | None, after: int | None) -> None:
    """An empty text leaves the context as it is."""
    assert context_after(text, context) == after


def test_difference_of_the_widest_step_takes_four_bytes() -> None:
    """The bound on varints holds for the two code points that are furthest apart, both ways."""
    assert len(difference("\U0010ffff", 0)) == 4
    assert len(difference("\0", 0x10FFFF)) == 4

"""Tests of `seedance_server.http.fields`."""

import pytest

from seedance_server.http.fields import Fields
from seedance_server.http.refusal import Refusal


@pytest.mark.parametrize("value", [None, [], "text", 1, True])
def test_fields_are_those_of_an_object(value: object) -> None:
    """Anything else has none."""
    with pytest.raises(Refusal) as refused:
        Fields(value, "stream_options")
    assert refused.value.param == "stream_options"


@pytest.mark.parametrize(
    "read",
    [
        lambda fields: fields.flag("x"),
        lambda fields: fields.integer("x", least=0),
        lambda fields: fields.text("x"),
        lambda fields: fields.items("x"),
        lambda fields: fields.choice("x", ["a"]),
    ],
)
def test_fields_of_the_wrong_kind_are_named(read) -> None:
    """By their place in the request."""
    with pytest.raises(Refusal) as refused:
        read(Fields({"x": {}}, "messages[0]"))
    assert (refused.value.status, refused.value.param) == (400, "messages[0].x")


def test_fields_that_are_null_are_absent() -> None:
    """As OpenAI's clients send them."""
    fields = Fields(dict.fromkeys("abcde"))
    assert fields.flag("a") is False
    assert fields.integer("b", default=7, least=0) == 7
    assert fields.text("c") is None
    assert fields.items("d") == []
    fields.refuse_others()


def test_fields_hold_whole_characters() -> None:
    """A lone surrogate can't be written down."""
    with pytest.raises(Refusal, match="lone surrogate"):
        Fields({"x": "\ud800"}).text("x")


def test_fields_that_nobody_took_are_refused() -> None:
    """A misspelt parameter isn't silently without effect."""
    fields = Fields({"temprature": 1})
    with pytest.raises(Refusal) as refused:
        fields.refuse_others()
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", "temprature")

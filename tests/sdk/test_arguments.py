"""Arguments one by one: what each becomes; how they are refused is tested on whole requests."""

from __future__ import annotations

import hashlib
from types import MappingProxyType

import pytest

from seedance_sdk import arguments
from seedance_sdk.errors import InvalidRequest
from seedance_wire.messages import Durability


def test_arguments_become_what_the_wire_wants() -> None:
    """One text is a list of one, every number is a float, a name is the enum's."""
    assert arguments.texts("stop", "a") == ("a",)
    assert arguments.texts("stop", ["a", "b"]) == ("a", "b")
    assert arguments.number("top_p", 1) == 1.0
    assert arguments.biases("logit_bias", {3: 1}) == {3: 1.0}
    assert arguments.choice(Durability)("durability", "none") is Durability.NONE


def test_request_key_of_a_text_is_its_digest() -> None:
    """A readable name of any length is as good a key as random bytes."""
    assert arguments.request_key("k", "é") == hashlib.sha256("é".encode()).digest()
    assert arguments.request_key("k", bytes(64)) == bytes(64)
    with pytest.raises(InvalidRequest, match="16 to 64 bytes"):
        arguments.request_key("k", b"short")


def test_labels_are_a_copy_that_nobody_changes() -> None:
    """What is found again is what was given."""
    given = {"user": 7}
    labels = arguments.labels("extra", given)
    given["user"] = 8
    assert labels == {"user": 7}
    assert isinstance(labels, MappingProxyType)


def test_json_of_a_mapping_is_its_text() -> None:
    """A schema may be given as it is written in Python; text is left as it is."""
    assert arguments.json_text("json_schema", {"type": "null"}) == '{"type": "null"}'
    assert arguments.json_text("json_schema", " {} ") == " {} "
    for value in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises(InvalidRequest):
            arguments.json_text("json_schema", value)
    with pytest.raises(TypeError):
        arguments.json_text("json_schema", [1])

"""A client's messages as JSON objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.envelope import InvalidSubmit
from seedance_wire.errors import DecodeError
from seedance_wire.json_client import client_message_from_json
from seedance_wire.json_fields import Json
from seedance_wire.messages import ChatMessage, Hello, Submit
from tests.strategies import json_values

SUBMIT: dict[str, Json] = {"type": "submit", "sequence_id": 3, "idempotency_key": "00" * 16}


def read(**members: Json) -> object:
    """The message of a SUBMIT with these members."""
    return client_message_from_json(SUBMIT | members)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, None),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "a b"),
    ],
)
def test_submit_joins_the_text_parts_of_a_turn(content: Json, text: str | None) -> None:
    """A turn's content is text, nothing, or parts that are all text."""
    message = read(messages=[{"role": "user", "content": content}])
    assert isinstance(message, Submit)
    assert message.messages == (ChatMessage(role="user", content=text),)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": "a"}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({}, "messages"),
        ({"prompt": "a", "token_ids": [1]}, "token_ids"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": "a\ud800"}, "prompt"),
        ({"token_ids": [1, 1.5]}, "token_ids[1]"),
        ({"token_ids": [True]}, "token_ids[0]"),
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "temperature": float("inf")}, "temperature"),
        ({"prompt": "a", "top_p": "0.5"}, "top_p"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2**63}, "max_tokens"),
        ({"prompt": "a", "seed": "x"}, "seed"),
        ({"prompt": "a", "stop": [1]}, "stop[0]"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": None}}, "logit_bias[1]"),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos"),
        ({"prompt": "a", "durability": "forever"}, "durability"),
        ({"prompt": "a", "deadline_ms": -1}, "deadline_ms"),
        ({"prompt": "a", "idempotency_key": "00"}, "idempotency_key"),
        ({"prompt": "a", "idempotency_key": "zz" * 16}, "idempotency_key"),
    ],
    ids=str,
)
def test_submit_names_the_field_of_its_body_that_is_wrong(members: dict[str, Json], field: str) -> None:
    """The request can be refused by name, and the connection goes on."""
    message = read(**members)
    assert isinstance(message, InvalidSubmit)
    assert (message.sequence_id, message.field) == (3, field)


def test_submit_takes_one_stop_string_without_a_list() -> None:
    """OpenAI's API allows both."""
    message = read(prompt="a", stop="x")
    assert isinstance(message, Submit)
    assert message.sampling.stop == ("x",)


def test_submit_reads_null_as_absent() -> None:
    """Libraries write out what is not set."""
    assert read(prompt="a", temperature=None, stop=None, messages=None) == read(prompt="a")


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "messages", "seed", "stop", "top_p", "logit_bias"]), json_values
    )
)
def test_submit_with_any_body_is_a_message_or_answerable(members: dict[str, Json]) -> None:
    """No value of a body can end the connection."""
    assert isinstance(read(**members), Submit | InvalidSubmit)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"type": "welcome"},
        {"type": 1},
        {"type": "submit", "prompt": "a"},
        SUBMIT | {"sequence_id": 0, "prompt": "a"},
        SUBMIT | {"sequence_id": 2**64, "prompt": "a"},
        SUBMIT | {"sequence_id": 0, "prompt": 3},
        SUBMIT | {"sequence_id": True, "prompt": "a"},
        {"type": "cancel", "sequence_id": 1},
        {"type": "ack", "processed": []},
        {"type": "ack", "processed": [[1, 1]]},
        {"type": "ack", "processed": [{"s": 1, "id": -1}]},
        {"type": "hello", "minor_version": "x"},
        {"type": "hello", "sdk_name": "\udfff"},
    ],
    ids=str,
)
def test_client_message_refuses_what_cannot_be_answered(value: Json) -> None:
    """Without knowing which message it is there is nothing to refuse by number."""
    with pytest.raises(DecodeError):
        client_message_from_json(value)


def test_hello_may_say_nothing_and_may_say_more() -> None:
    """Outside SUBMIT unknown members are skipped, as a newer client may have some."""
    assert client_message_from_json({"type": "hello", "ticket": "x"}) == Hello()

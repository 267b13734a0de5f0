"""The one signature: what is accepted, what it becomes, and who is told off for what."""

from __future__ import annotations

import typing
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_sdk import parameters
from seedance_sdk.completion import Completion, StageTiming, Usage
from seedance_sdk.errors import InvalidRequest
from seedance_sdk.options import Options, SamplingOptions
from seedance_sdk.parameters import chat_request, complete_request, resume_request
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import ChatMessage, Durability, OnDisconnect, Sampling

HI: Any = [{"role": "user", "content": "Hi"}]


def test_options_cover_the_wire_and_nothing_else() -> None:
    """A sampling parameter of the wire has a typed name here, and no name here is unknown to it."""
    on_the_wire = {field.name for field in attrs.fields(Sampling)}
    assert set(typing.get_type_hints(SamplingOptions)) == on_the_wire
    assert set(parameters._SAMPLING) == on_the_wire
    assert set(typing.get_type_hints(Options)) - on_the_wire == set(
        parameters._OF_THE_CALL | parameters._OTHER
    )


def test_chat_request_carries_everything_given() -> None:
    """What the caller says is what is sent, under the wire's names."""
    request = chat_request(
        HI,
        {
            "temperature": 0,
            "stop": "END",
            "stop_token_ids": [1, 2],
            "logit_bias": {7: -100},
            "logprobs": True,
            "seed": -5,
            "model": "m",
            "deadline": 2.5,
            "timeout": 9,
            "parse_special": True,
            "extra": {"user": 7},
        },
        random_bytes=bytes,
    )
    submit = request.submit
    assert submit.messages == (ChatMessage(role="user", content="Hi"),)
    assert submit.sampling == Sampling(
        temperature=0.0,
        stop=("END",),
        stop_token_ids=(1, 2),
        logit_bias={7: -100.0},
        logprobs=True,
        seed=-5,
    )
    assert (submit.model, submit.parse_special, submit.idempotency_key) == ("m", True, bytes(16))
    assert (request.timeout_s, request.deadline_s, request.extra) == (9.0, 2.5, {"user": 7})


def test_absent_and_none_leave_the_choice_to_the_server() -> None:
    """None means "not given", so a caller can pass its own optional settings through."""
    nothing = dict.fromkeys(typing.get_type_hints(SamplingOptions))
    assert chat_request(HI, nothing).submit.sampling == Sampling()
    assert chat_request(HI, {"timeout": None}).timeout_s == parameters.DEFAULT_TIMEOUT_S


@given(
    name=st.text().filter(
        lambda name: name not in parameters._SAMPLING | parameters._OF_THE_CALL | parameters._OTHER
    )
)
def test_unknown_parameter_is_a_type_error(name: str) -> None:
    """A misspelt parameter is never dropped silently."""
    with pytest.raises(TypeError, match="unknown parameter"):
        chat_request(HI, {name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_k", True),
        ("logprobs", 1),
        ("stop", 5),
        ("stop", b"x"),
        ("stop", ["a", 1]),
        ("stop_token_ids", "12"),
        ("logit_bias", [1]),
        ("model", 3),
        ("timeout", "1"),
        ("idempotency_key", 7),
        ("extra", "user"),
    ],
)
def test_wrong_type_is_a_type_error_that_names_the_parameter(name: str, value: object) -> None:
    """A wrong type is the caller's bug, found before anything is sent."""
    with pytest.raises(TypeError, match=name):
        chat_request(HI, {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2**63),
        ("idempotency_key", bytes(15)),
        ("idempotency_key", bytes(65)),
        ("idempotency_key", "\ud800"),
        ("max_tokens", -(2**63) - 1),
        ("stop", "\ud800"),
        ("temperature", 10**400),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("deadline", -1),
        ("deadline", 1e300),
        ("deadline", float("inf")),
        ("deadline", float("nan")),
    ],
)
def test_value_that_cannot_travel_is_an_invalid_request(name: str, value: object) -> None:
    """What no encoding can carry is refused by name, as the server would refuse it."""
    with pytest.raises(InvalidRequest) as caught:
        chat_request(HI, {name: value})
    assert caught.value.field == name


def test_request_has_a_key_of_its_own_or_the_callers() -> None:
    """Two calls are two requests, unless their caller says that they are one."""
    keys = {complete_request("x", None, {}).submit.idempotency_key for _ in range(3)}
    assert len(keys) == 3
    named = [complete_request("x", None, {"idempotency_key": "order 7"}).submit.idempotency_key for _ in "ab"]
    assert named[0] == named[1]
    assert len(named[0]) == 32
    assert complete_request("x", None, {"idempotency_key": bytes(16)}).submit.idempotency_key == bytes(16)


def test_nan_and_infinity_travel() -> None:
    """Ranges are the server's to judge: NaN reaches it and comes back as a typed refusal."""
    sampling = chat_request(HI, {"temperature": float("nan"), "top_p": float("inf")}).submit.sampling
    assert sampling.temperature != sampling.temperature  # that is NaN
    assert sampling.top_p == float("inf")


class _Integer:
    def __index__(self) -> int:
        return 42


def test_integers_of_other_libraries_are_integers() -> None:
    """NumPy's and torch's integers work wherever Python's do."""
    assert chat_request(HI, {"seed": _Integer()}).submit.sampling.seed == 42


def test_content_parts_are_joined_as_they_are() -> None:
    """A list of text parts is their text, with nothing put between."""
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "name": "Ann"},
    ]
    assert chat_request(messages, {}).submit.messages == (
        ChatMessage(role="user", content="ab"),
        ChatMessage(role="assistant", content=None, name="Ann"),
    )


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("Hi", "messages"),
        ({"role": "user", "content": "Hi"}, "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": b"Hi"}], "messages[0].content"),
        ([*HI, {"role": "user", "content": "\udfff"}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "Hi", "nick": "x"}], "messages[0]"),
        ([{"role": "user", "content": "Hi", "name": 5}], "messages[0].name"),
    ],
)
def test_messages_that_are_no_conversation_are_refused_by_field(messages: Any, field: str) -> None:
    """The field says where in a long conversation the mistake is."""
    with pytest.raises(InvalidRequest) as caught:
        chat_request(messages, {})
    assert caught.value.field == field


def test_messages_may_be_any_iterable() -> None:
    """A generator is read once."""
    assert len(chat_request((turn for turn in HI * 3), {}).submit.messages or ()) == 3


def test_complete_takes_exactly_one_input() -> None:
    """Text or ids, never both, never neither."""
    assert complete_request("Hi", None, {}).submit.prompt == "Hi"
    assert complete_request(None, range(3), {}).submit.token_ids == (0, 1, 2)
    for prompt, token_ids in ((None, None), ("Hi", [1])):
        with pytest.raises(TypeError, match="exactly one"):
            complete_request(prompt, token_ids, {})


def test_each_request_has_a_key_of_its_own() -> None:
    """Two requests are two generations, even if they say the same."""
    keys = {chat_request(HI, {}).submit.idempotency_key for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {16}


def test_request_carries_the_trace_that_it_belongs_to() -> None:
    """As W3C Trace Context writes it; what isn't one is told before anything is sent."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert complete_request("x", None, {"traceparent": trace}).submit.traceparent == trace
    assert complete_request("x", None, {"traceparent": None}).submit.traceparent is None
    with pytest.raises(InvalidRequest, match="W3C Trace Context"):
        complete_request("x", None, {"traceparent": "4bf92f3577b34da6"})


def test_request_carries_what_becomes_of_it_in_an_outage() -> None:
    """Durability and what a lost connection means are the caller's choice, by the wire's names."""
    request = complete_request(
        "x", None, {"durability": "none", "on_disconnect": "cancel", "allow_fingerprint_change": True}
    )
    submit = request.submit
    assert (submit.durability, submit.on_disconnect) == (Durability.NONE, OnDisconnect.CANCEL)
    assert submit.allow_fingerprint_change
    assert complete_request("x", None, {"durability": None}).submit.durability is None
    for name in ("durability", "on_disconnect"):
        with pytest.raises(InvalidRequest, match=f"{name} must be one of"):
            complete_request("x", None, {name: "maybe"})


def test_continues_takes_whatever_names_an_earlier_turn() -> None:
    """A completion or a stream brings its session along; a bare number is of the current one."""
    turn = Completion(
        text="",
        finish_reason="stop",
        stop=None,
        usage=Usage(prompt_tokens=1, completion_tokens=2),
        timing=StageTiming(),
        id=7,
        session_id="s",
    )
    request = complete_request("x", None, {"continues": turn})
    assert (request.submit.continues, request.session_id) == (7, "s")
    request = complete_request("x", None, {"continues": 3})
    assert (request.submit.continues, request.session_id) == (3, "")
    assert complete_request("x", None, {}).session_id is None
    for wrong in ("7", True, 1.5):
        with pytest.raises(TypeError, match="continues must be a stream"):
            complete_request("x", None, {"continues": wrong})


def test_resume_request_takes_a_bookmark_or_its_text() -> None:
    """Stored as text or not, a bookmark is a bookmark; anything else is told off before any connection."""
    mark = Bookmark(
        session_id="s", resume_token=b"t", stream_id=3, last_processed_id=5, offset=9, digest16=None
    )
    for given_as in (mark, mark.to_str()):
        request = resume_request(given_as, {"timeout": 3, "deadline": 4, "extra": {"a": 1}})
        assert (request.bookmark, request.timeout_s, request.deadline_s) == (mark, 3, 4)
        assert request.extra == {"a": 1}
    assert resume_request(mark, {}).deadline_s is None
    with pytest.raises(InvalidRequest, match="not a bookmark"):
        resume_request("seedance-bookmark-9 {}", {})
    with pytest.raises(TypeError, match="a bookmark or its text"):
        resume_request(5, {})
    with pytest.raises(TypeError, match="unknown parameter 'model'"):
        resume_request(mark, {"model": "m"})

"""Tests of `seedance_server.http.asked`: what OpenAI's parameters become, and which are refused."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.errors import InvalidParameter
from seedance_server.http import asked
from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.asked import Asked, parse_asked
from seedance_server.http.refusal import Refusal
from seedance_server.prepared import sampling_params
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import ChatMessage, OnDisconnect, Sampling
from seedance_wire.stored_form import dump_submit, load_submit

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "Hi"}


def parse(body: dict[str, Any], max_choices: int = 8) -> Asked:
    kind = Kind.CHAT if "messages" in body else Kind.TEXT
    return parse_asked(AnswerId.of(kind, "t", "k"), body, max_choices=max_choices)


def test_asked_carries_every_sampling_parameter() -> None:
    """Under the names of both APIs."""
    body = CHAT | {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "stop": "\n",
        "stop_token_ids": [1],
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -100},
        "logprobs": True,
        "top_logprobs": 3,
    }
    (submit,) = parse(body).submits
    assert submit.sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, stop=("\n",), stop_token_ids=(1,),
        max_tokens=9, min_tokens=2, ignore_eos=True, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, logit_bias={5: -100}, logprobs=True, top_logprobs=3,
    )  # fmt: skip


def test_asked_for_several_choices_has_a_seed_for_each() -> None:
    """Else all would be the same; without a seed each gets one of its own later."""
    asked = parse(CHAT | {"n": 3, "seed": 7})
    assert [submit.sampling.seed for submit in asked.submits] == [7, 8, 9]
    assert len({submit.idempotency_key for submit in asked.submits}) == 3
    assert [submit.sequence_id for submit in asked.submits] == [1, 2, 3]
    assert [submit.sampling.seed for submit in parse(CHAT | {"n": 2}).submits] == [None, None]


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, (1, 2))]),
        ([[1], [2, 3]], [(None, (1,)), (None, (2, 3))]),
    ],
)
def test_asked_for_a_text_may_have_several_prompts(prompt: Any, inputs: list[Any]) -> None:
    """Texts, or token ids; 16 tokens each, unless it is said."""
    asked = parse({"prompt": prompt, "n": 2, "logprobs": 2})
    assert asked.prompts == len(inputs)
    got = [(submit.prompt, submit.token_ids) for submit in asked.submits]
    assert got == [each for each in inputs for _ in range(2)]
    sampling = asked.submits[0].sampling
    assert (sampling.max_tokens, sampling.logprobs, sampling.top_logprobs) == (16, True, 2)


def test_asked_in_a_conversation_has_turns_of_text() -> None:
    """Parts are joined; who develops is the system; what is null isn't there."""
    messages = [
        {"role": "developer", "content": "Be brief.", "name": "ops"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
    ]
    assert parse({"messages": messages}).submits[0].messages == (
        ChatMessage(role="system", content="Be brief.", name="ops"),
        ChatMessage(role="user", content="ab"),
        ChatMessage(role="assistant", content=None),
    )


def test_asked_for_what_says_nothing_is_let_pass() -> None:
    """Parameters without an effect on the answer, and others at the value that asks for nothing."""
    neutral = {
        "user": "u",
        "store": True,
        "metadata": {"a": "b"},
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "reasoning_effort": None,
        "stream_options": None,
        "stream": None,
    }
    asked = parse(CHAT | neutral)
    assert asked == parse(CHAT)
    assert not asked.stream


@pytest.mark.parametrize(
    ("given", "schema", "regex"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, '{"type":"object"}', None),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": {"type": "null"}},
                }
            },
            '{"type": "null"}',
            None,
        ),
        ({"guided_json": {"type": "null"}}, '{"type": "null"}', None),
        ({"guided_json": '{"type": "null"}'}, '{"type": "null"}', None),
        ({"guided_regex": "a+"}, None, "a+"),
    ],
)
def test_asked_for_a_form_says_which(given: dict[str, Any], schema: str | None, regex: str | None) -> None:
    """OpenAI's way of saying it, and vLLM's."""
    sampling = parse(CHAT | given).submits[0].sampling
    assert (sampling.json_schema, sampling.regex) == (schema, regex)


def test_asked_to_end_with_its_client_does() -> None:
    """Our own parameter, beside OpenAI's."""
    submit = parse(CHAT | {"on_disconnect": "cancel", "deadline_ms": 500}).submits[0]
    assert submit.on_disconnect is OnDisconnect.CANCEL
    assert submit.deadline_ms == 500


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (CHAT | {"response_format": {"type": "xml"}}, "response_format.type", None),
        (CHAT | {"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
        (
            CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            None,
        ),
        (CHAT | {"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json", None),
        (CHAT | {"guided_regex": 1}, "guided_regex", None),
        (CHAT | {"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        (CHAT | {"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        (TEXT | {"echo": True}, "echo", "unsupported_parameter"),
        (TEXT | {"best_of": 2}, "best_of", "unsupported_parameter"),
        (TEXT | {"messages_": []}, "messages_", "unknown_parameter"),
        (CHAT | {"stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        (CHAT | {"n": 0}, "n", None),
        (CHAT | {"n": 9}, "n", None),
        (CHAT | {"n": True}, "n", None),
        (CHAT | {"stop": 1}, "stop", None),
        (CHAT | {"logit_bias": {"a": 1}}, "logit_bias", None),
        (CHAT | {"logit_bias": [1]}, "logit_bias", None),
        (CHAT | {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", None),
        (CHAT | {"on_disconnect": "explode"}, "on_disconnect", None),
        (TEXT | {"prompt": []}, "prompt", None),
        (TEXT | {"prompt": ["a", 1]}, "prompt", None),
        (TEXT | {"prompt": [True]}, "prompt", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"content": "a"}]}, "messages[0].role", None),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
    ],
)
def test_asked_for_what_there_is_not_is_refused(body: dict[str, Any], param: str, code: str | None) -> None:
    """By the name of the parameter; nobody gets an answer to something else."""
    with pytest.raises(Refusal) as refused:
        parse(body)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EXACT = (
    *("messages", "prompt", "n", "stop", "stop_token_ids", "logit_bias", "stream", "stream_options", "model"),
    *("response_format", "guided_json", "guided_regex", "max_tokens", "max_completion_tokens", "logprobs"),
    *("top_logprobs", "on_disconnect", "deadline_ms"),
)
names = st.sampled_from([*asked._SAMPLING, *asked._LET_PASS, *asked._NEUTRAL, *EXACT])


@pytest.mark.slow
@given(body=st.dictionaries(names, json_values, max_size=6) | json_values, kind=st.sampled_from(Kind))
def test_asked_of_anything_is_an_answer_or_a_refusal(body: Any, kind: Kind) -> None:
    """Whatever JSON a client sends: what is taken can be written down, the rest says why not."""
    with contextlib.suppress(Refusal):
        for submit in parse_asked(AnswerId.of(kind, "t", "k"), body, max_choices=4).submits:
            with contextlib.suppress(LocalProtocolError, InvalidParameter):
                sampling_params(submit.sampling)
                assert load_submit(dump_submit(submit)) == submit

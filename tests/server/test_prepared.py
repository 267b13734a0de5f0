"""Tests of `seedance_server.prepared`."""

import pytest

from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.prepared import Prepared, check_ids, encode_prompt, input_field, sampling_params
from seedance_server.testing import ScriptedEncoder
from seedance_wire.messages import ChatMessage, Sampling, Submit

CHAT = {"messages": (ChatMessage(role="user", content="Hi"),)}


def submit(**more) -> Submit:
    return Submit(sequence_id=1, idempotency_key=bytes(16), **more)


@pytest.mark.parametrize(
    ("more", "field", "ids"),
    [
        (CHAT, "messages", [72, 105]),
        ({"prompt": "Hi"}, "prompt", [72, 105]),
        ({"token_ids": (1,)}, "token_ids", [1]),
    ],
)
def test_prompt_is_encoded_from_whichever_input_there_is(more, field, ids) -> None:
    """Behind the conversation's own ids, where there are some."""
    request = submit(**more)
    assert input_field(request) == field
    assert list(encode_prompt(ScriptedEncoder(), request, None)) == ids
    assert list(encode_prompt(ScriptedEncoder(), request, (7, 8))) == [7, 8, *ids]


def test_sampling_keeps_the_engines_defaults_where_nothing_is_said() -> None:
    """None is no value."""
    assert sampling_params(Sampling()) == SamplingParams()
    assert sampling_params(Sampling(temperature=0.0, max_tokens=3)) == SamplingParams(
        temperature=0.0, max_tokens=3
    )


@pytest.mark.parametrize("token_id", [-1, 10, 1 << 40])
def test_ids_without_a_row_are_refused(token_id: int) -> None:
    """They would end the engine, not the request."""
    check_ids(None, 10)
    check_ids((0, 9), 10)
    with pytest.raises(InvalidParameter, match="from 0 to 9"):
        check_ids((0, token_id), 10)


def test_prepared_request_shows_its_seed_and_hides_its_prompt() -> None:
    """Nothing that a user wrote reaches a log by its repr."""
    prepared = Prepared(prompt_ids=(123456,), params=SamplingParams(seed=5), arrival_s=0)
    assert prepared.seed == 5
    assert "123456" not in repr(prepared)

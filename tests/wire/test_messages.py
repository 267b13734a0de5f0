"""The vocabulary."""

from typing import get_args

import attrs
import pytest
from hypothesis import Phase, given, settings

from seedance_wire import messages
from seedance_wire.messages import ClientMessage, Message, Sampling, ServerMessage
from tests.strategies import client_messages, server_messages

CLASSES = [value for value in vars(messages).values() if isinstance(value, type) and attrs.has(value)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_message_is_a_frozen_slotted_value(cls: type) -> None:
    """A message that was checked stays what it was, and costs no dictionary."""
    assert "__dict__" not in dir(cls)
    assert cls.__setattr__ is not object.__setattr__


def test_message_unions_hold_every_message() -> None:
    """Nothing can be sent that the unions do not name."""
    assert set(get_args(Message)) == set(get_args(ClientMessage)) | set(get_args(ServerMessage))
    assert not set(get_args(ClientMessage)) & set(get_args(ServerMessage))


@pytest.mark.slow
def test_strategies_vary_every_field_of_every_message() -> None:
    """A field that no strategy varies would have no round-trip test."""
    seen: dict[tuple[str, str], set[str]] = {}

    @settings(max_examples=2500, phases=[Phase.generate], database=None, derandomize=True)
    @given(client_messages() | server_messages)
    def look(message: Message) -> None:
        parts: list[object] = [message]
        while parts:
            part = parts.pop()
            for field in attrs.fields(type(part)):
                value = getattr(part, field.name)
                seen.setdefault((type(part).__name__, field.name), set()).add(repr(value))
                values = value if isinstance(value, tuple) else (value,)
                parts += [inner for inner in values if attrs.has(type(inner))]

    look()
    everything = {(cls.__name__, field.name) for cls in CLASSES for field in attrs.fields(cls)}
    assert {key for key, values in seen.items() if len(values) > 1} == everything


def test_sampling_keeps_its_own_copy_of_the_biases() -> None:
    """A frozen value does not change when the dictionary that it was made from does."""
    bias = {1: 2.0}
    sampling = Sampling(logit_bias=bias)
    bias[1] = 3.0
    assert sampling.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        sampling.logit_bias[1] = 4.0  # type: ignore[index]

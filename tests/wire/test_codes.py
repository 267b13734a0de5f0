"""The closed sets of names."""

from enum import Enum

import pytest

from seedance_wire import codes, messages
from seedance_wire import seedance_pb2 as pb

ENUMS = [value for value in vars(codes).values() if isinstance(value, type) and issubclass(value, Enum)]
ENUMS = [enum for enum in ENUMS if enum.__module__ == codes.__name__]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_names_are_those_of_the_schema(enum: type[Enum]) -> None:
    """A name that only one side has could be sent and not be read."""
    schema = getattr(pb, enum.__name__)
    prefix = {"OnDisconnect": "ON_DISCONNECT"}.get(enum.__name__) or "".join(
        f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(enum.__name__)
    ).upper()
    names = {name.removeprefix(f"{prefix}_") for name in dict(schema.items())} - {"UNSPECIFIED"}
    assert names == {member.name for member in enum}
    assert getattr(messages, enum.__name__) is enum


def test_every_enum_is_looked_at() -> None:
    """The test above is no empty promise."""
    assert sorted(enum.__name__ for enum in ENUMS) == codes.__all__

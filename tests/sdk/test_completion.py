"""Chunks and completions are values of the application, and say what the wire says."""

from __future__ import annotations

import typing

import attrs
import pytest

from seedance_sdk import completion
from seedance_sdk.completion import Chunk
from seedance_wire import messages


def test_finish_reasons_are_those_of_the_wire() -> None:
    """A reason that the wire can carry has a name for type checkers, and the reverse."""
    assert set(typing.get_args(completion.FinishReason)) == {reason.value for reason in messages.FinishReason}


def test_chunk_cannot_be_changed() -> None:
    """A chunk may be shared between threads: it is frozen."""
    chunk = Chunk(delta="a", id=1, offset=0, token_count=1, received_at=0.0)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        chunk.delta = "b"  # type: ignore[misc]

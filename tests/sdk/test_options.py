"""The options that callers write: documented one by one, and the same in both clients."""

from __future__ import annotations

import inspect
import typing

import pytest

from seedance_sdk import options
from seedance_sdk.completion import Completion
from seedance_sdk.options import EarlierTurn, Options, ResumeOptions
from seedance_sdk.stream import AsyncStream

NAMES = sorted(typing.get_type_hints(Options))


@pytest.mark.parametrize("name", NAMES)
def test_option_has_a_docstring(name: str) -> None:
    """Whoever hovers over a parameter reads what it does: each name is followed by its text."""
    lines = inspect.getsource(options).splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(f"    {name}: ")]
    assert len(places) == 1
    assert lines[places[0] + 1].startswith('    """')


def test_resume_takes_the_times_of_any_request() -> None:
    """A bound means the same wherever it is given."""
    assert set(typing.get_type_hints(ResumeOptions)) < set(NAMES)


@pytest.mark.parametrize("kind", [Completion, AsyncStream])
def test_results_are_turns_to_continue(kind: type) -> None:
    """What a call returned can be handed to the next one as it is."""
    members = {name for name in dir(EarlierTurn) if not name.startswith("_")}
    fields = {field.name for field in getattr(kind, "__attrs_attrs__", ())}
    assert members == {"id", "session_id"}
    assert members <= fields | set(dir(kind))

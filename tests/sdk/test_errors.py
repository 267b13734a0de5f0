"""The error tree: complete towards the wire, and usable across processes and threads."""

from __future__ import annotations

import copy
import pickle

import pytest

from seedance_sdk import errors
from seedance_sdk.errors import ConnectionFailed, SeedanceError, StreamLost

KINDS = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, SeedanceError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_pickling_and_copying_whatever_its_kind(kind: type[SeedanceError]) -> None:
    """Errors cross process boundaries and are copied for each stream; neither loses data."""
    error = kind("what", field="f", retry_after_ms=7, close_code=1006, reason="r")
    error.partial = "text so far"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "what"
        assert vars(twin) == vars(error)


def test_lost_stream_says_what_there_is_still() -> None:
    """Whoever catches a truncation learns from where the rest can be had."""
    error = StreamLost("gone", first_available_id=7, last_id=9)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (twin.first_available_id, twin.last_id) == (7, 9)


def test_tree_in_the_docstring_names_every_error_once() -> None:
    """The tree that users read is the tree there is."""
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line.lstrip("│├└─ ").split()[0] for line in lines if line.lstrip("│├└─ ") and ("──" in line)]
    assert sorted(["SeedanceError", *drawn]) == sorted(kind.__name__ for kind in KINDS)


def test_builtin_kinds_are_kept_for_callers_that_know_no_seedance() -> None:
    """A time-out is a TimeoutError and a bad value is a ValueError, as everywhere in Python."""
    assert issubclass(errors.RequestTimeout, TimeoutError)
    assert issubclass(errors.InvalidRequest, ValueError)
    assert not issubclass(ConnectionFailed, OSError)

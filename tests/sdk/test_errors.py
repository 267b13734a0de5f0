"""The error tree: complete towards the wire, and usable across processes and threads."""

from __future__ import annotations

import copy
import pickle

import pytest

from seedance_sdk import errors
from seedance_sdk.errors import (
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    RequestRefused,
    SeedanceError,
    ServerFailed,
    Unavailable,
    error_of_close,
    error_of_status,
    error_of_wire,
)
from seedance_wire.errors import CloseCode
from seedance_wire.messages import Error, ErrorCode, Refused

KINDS = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, SeedanceError)
]


@pytest.mark.parametrize("code", ErrorCode)
def test_refused_becomes_its_own_error_for_every_code(code: ErrorCode) -> None:
    """Each ErrorCode has one exception, which carries the data of REFUSED."""
    refused = Refused(
        sequence_id=1, code=code, message="why", field="top_p", retryable=True, retry_after_ms=250
    )
    error = error_of_wire(refused)
    assert type(error).code is code
    assert (str(error), error.field, error.retryable, error.retry_after_ms) == ("why", "top_p", True, 250)
    assert isinstance(error, RequestRefused | Unavailable | ServerFailed | errors.DeadlineExceeded)


def test_error_frame_becomes_the_same_error_as_refused() -> None:
    """Where a failure happens does not change its type."""
    frame = Error(
        stream_id=1, id=3, epoch=1, offset=9, code=ErrorCode.ENGINE_FAILED, message="gone", retryable=True
    )
    error = error_of_wire(frame)
    assert isinstance(error, errors.EngineFailed)
    assert error.retryable
    assert error.field is None


@pytest.mark.parametrize("code", CloseCode)
def test_close_code_becomes_a_typed_error_that_keeps_code_and_reason(code: CloseCode) -> None:
    """Nothing that a server closes with is lost on the way to the application."""
    error = error_of_close(code, "because")
    assert error.close_code == code
    assert error.reason == "because"
    assert str(int(code)) in str(error)
    assert "because" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1001, ConnectionLost),
        (1002, ProtocolError),
        (1008, errors.PermissionDenied),
        (1009, errors.RequestTooLarge),
        (1013, errors.Overloaded),
        (4400, ProtocolError),
        (4401, errors.AuthenticationError),
        (4409, errors.Superseded),
        (4429, errors.RateLimited),
        (4999, ConnectionLost),
    ],
)
def test_close_code_says_who_is_at_fault(code: int, kind: type[SeedanceError]) -> None:
    """The table of close codes decides whether trying again makes sense."""
    assert type(error_of_close(code, "")) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.UpgradeRefused),
        (401, errors.AuthenticationError),
        (403, errors.PermissionDenied),
        (404, errors.UpgradeRefused),
        (429, errors.RateLimited),
        (503, errors.Overloaded),
    ],
)
def test_status_says_who_is_at_fault(status: int, kind: type[SeedanceError]) -> None:
    """An HTTP refusal is a typed error with its status and the time to wait."""
    error = error_of_status(status, "not now", 3000)
    assert type(error) is kind
    assert error.status == status
    assert error.retry_after_ms == 3000
    assert "not now" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_pickling_and_copying_whatever_its_kind(kind: type[SeedanceError]) -> None:
    """Errors cross process boundaries and are copied for each stream; neither loses data."""
    error = kind("what", field="f", retry_after_ms=7, close_code=1006, reason="r")
    error.partial = "text so far"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "what"
        assert vars(twin) == vars(error)


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

"""From the wire's codes to exceptions: complete, and no word of the server's lost on the way."""

from __future__ import annotations

import pytest

from seedance_sdk import errors
from seedance_sdk.causes import error_of_close, error_of_resume, error_of_status, error_of_wire
from seedance_sdk.errors import (
    ConnectionLost,
    ProtocolError,
    RequestRefused,
    SeedanceError,
    ServerFailed,
    StreamLost,
    Unavailable,
)
from seedance_wire.errors import CloseCode
from seedance_wire.messages import Error, ErrorCode, Refused, ResumeFailure


@pytest.mark.parametrize("code", ErrorCode)
def test_refused_becomes_its_own_error_for_every_code(code: ErrorCode) -> None:
    """Each ErrorCode has one exception, which carries the data of REFUSED."""
    refused = Refused(
        sequence_id=1, code=code, message="why", field="top_p", retryable=True, retry_after_ms=250
    )
    error = error_of_wire(refused)
    assert type(error).code is code
    assert (str(error), error.field, error.retryable, error.retry_after_ms) == ("why", "top_p", True, 250)
    assert isinstance(
        error, RequestRefused | Unavailable | ServerFailed | StreamLost | errors.DeadlineExceeded
    )


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
        (4410, errors.StreamTruncated),
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


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ("draining", errors.Draining),
        ("overloaded", errors.Overloaded),
        ("rate_limited", errors.RateLimited),
        ("of_the_future", errors.Overloaded),
        (None, errors.Overloaded),
    ],
)
def test_status_with_an_error_code_is_the_error_of_that_code(
    named: str | None, kind: type[SeedanceError]
) -> None:
    """A server that is shutting down is not one that is busy; a code unknown here leaves the status."""
    error = error_of_status(503, "", 3000, error_code=named)
    assert type(error) is kind
    assert (error.status, error.retry_after_ms) == (503, 3000)


FAILURES = {
    ResumeFailure.NOT_FOUND: errors.StreamNotFound,
    ResumeFailure.EXPIRED: errors.StreamExpired,
    ResumeFailure.TRUNCATED: errors.StreamTruncated,
    ResumeFailure.CURSOR_AHEAD: errors.CursorAhead,
    ResumeFailure.DIVERGED: errors.Diverged,
    ResumeFailure.FINGERPRINT_MISMATCH: errors.FingerprintMismatch,
    ResumeFailure.SUPERSEDED: errors.Superseded,
}


@pytest.mark.parametrize("failure", ResumeFailure)
def test_rejected_resume_becomes_a_typed_error_for_every_failure(failure: ResumeFailure) -> None:
    """Each answer of the protocol has its exception, and none of them is worth a retry."""
    error = error_of_resume(failure, first_available_id=3, last_id=8)
    assert type(error) is FAILURES[failure]
    assert not error.retryable
    if isinstance(error, StreamLost):
        assert (error.first_available_id, error.last_id) == (3, 8)
        assert "pieces 3 to 8" in str(error)
        assert "pieces" not in str(error_of_resume(failure)).partition(";")[2]

"""Tests of `seedance_server.refusals`."""

import pytest

from seedance_server.engine.errors import (
    ContextLengthExceeded,
    ContinuationMismatch,
    InvalidParameter,
    KvCapacityExceeded,
    NumericalError,
    OutOfDeviceMemory,
    TemplateError,
)
from seedance_server.errors import EngineStopped, StreamGivenUp
from seedance_server.refusals import RETRY_SOON_MS, describe_failure, refusal_of
from seedance_wire.messages import ErrorCode


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (ContextLengthExceeded(10, 5), ErrorCode.CONTEXT_LENGTH_EXCEEDED, False),
        (KvCapacityExceeded(65, 64), ErrorCode.CAPACITY_EXCEEDED, False),
        (TemplateError("roles must alternate"), ErrorCode.TEMPLATE_ERROR, False),
        (NumericalError("NaN"), ErrorCode.NUMERICAL_ERROR, False),
        (ContinuationMismatch("text"), ErrorCode.FINGERPRINT_MISMATCH, False),
        (OutOfDeviceMemory("/dev/x"), ErrorCode.ENGINE_FAILED, True),
        (EngineStopped("RuntimeError: /home/me"), ErrorCode.ENGINE_FAILED, True),
        (StreamGivenUp(3), ErrorCode.ENGINE_FAILED, False),
        (ValueError("/home/me"), ErrorCode.INTERNAL, False),
    ],
)
def test_failures_become_codes_without_the_servers_secrets(error, code, retryable) -> None:
    """A client reads what is about its request, never what is about the server."""
    described, message, again = describe_failure(error)
    assert (described, again) == (code, retryable)
    assert "/" not in message
    assert ("10" in message and "5" in message) or not isinstance(error, ContextLengthExceeded)


def test_refusal_names_the_field_at_fault_and_when_to_come_back() -> None:
    """The field for the caller's mistakes, a time for the server's."""
    refusal = refusal_of(InvalidParameter("top_p", "must be at most 1"))
    assert (refusal.code, refusal.field, refusal.retry_after_ms) == (ErrorCode.INVALID_REQUEST, "top_p", None)
    refusal = refusal_of(EngineStopped("x"))
    assert (refusal.code, refusal.field, refusal.retry_after_ms) == (
        ErrorCode.ENGINE_FAILED,
        None,
        RETRY_SOON_MS,
    )

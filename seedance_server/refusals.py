"""What a client is told of what went wrong with its request: a code, a sentence, and whether to try again.

An error that is about the request is told in its own words. One that isn't may name files or devices: the
client gets a sentence without them, the log the rest. A bug is only ever called `internal`.

It must not know connections or how an answer is encoded.
"""

from __future__ import annotations

from collections.abc import Mapping

from seedance_server.engine.errors import (
    ContextLengthExceeded,
    ContinuationMismatch,
    EngineError,
    InvalidParameter,
    KvCapacityExceeded,
    NumericalError,
    TemplateError,
)
from seedance_server.errors import EngineStopped, RequestRefused, StreamGivenUp
from seedance_wire.messages import ErrorCode

__all__ = ["RETRY_SOON_MS", "describe_failure", "refusal_of"]

RETRY_SOON_MS = 1_000
"""What a refused client is told to wait: about one answer's length, picked, not measured."""


_REQUEST_FAULTS: Mapping[type[EngineError], ErrorCode] = {
    InvalidParameter: ErrorCode.INVALID_REQUEST,
    ContextLengthExceeded: ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    KvCapacityExceeded: ErrorCode.CAPACITY_EXCEEDED,
    TemplateError: ErrorCode.TEMPLATE_ERROR,
    NumericalError: ErrorCode.NUMERICAL_ERROR,
    ContinuationMismatch: ErrorCode.FINGERPRINT_MISMATCH,
}
"""Errors whose text is about the request, so that the client may read it."""


def describe_failure(error: BaseException) -> tuple[ErrorCode, str, bool]:
    """What a client may know of a failure: a code, a sentence, and whether to try again."""
    for kind, code in _REQUEST_FAULTS.items():
        if isinstance(error, kind):
            return code, str(error), False
    if isinstance(error, StreamGivenUp):
        return ErrorCode.ENGINE_FAILED, str(error), False
    if isinstance(error, EngineError | EngineStopped):
        # The cause may name files or devices; it stands in the log and in readiness.
        return ErrorCode.ENGINE_FAILED, "the engine failed: try again elsewhere", True
    return ErrorCode.INTERNAL, "a bug in the server, see its log", False


def refusal_of(error: EngineError | EngineStopped) -> RequestRefused:
    """The same for a request that hasn't begun."""
    code, reason, retryable = describe_failure(error)
    field = error.field if isinstance(error, InvalidParameter) else None
    return RequestRefused(code, reason, field=field, retry_after_ms=RETRY_SOON_MS if retryable else None)

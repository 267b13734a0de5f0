"""From what the wire says went wrong to the exception that the application gets.

A table each for failures in messages, HTTP statuses, close codes, and resumes that were rejected. Whatever
has no entry still becomes a typed error. Must not decide what is tried again: see `reconnect`.
"""

from __future__ import annotations

from seedance_sdk.errors import (
    Abandoned,
    AuthenticationError,
    CapacityExceeded,
    ConnectionLost,
    ContextLengthExceeded,
    CursorAhead,
    DeadlineExceeded,
    Diverged,
    Draining,
    EngineFailed,
    FingerprintMismatch,
    IdempotencyMismatch,
    InternalServerError,
    InvalidRequest,
    JournalFull,
    ModelNotFound,
    NumericalError,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    RequestTooLarge,
    SeedanceError,
    StreamExpired,
    StreamLost,
    StreamNotFound,
    StreamTruncated,
    Superseded,
    TemplateRefused,
    Unsupported,
    UpgradeRefused,
)
from seedance_wire.client_session import StreamLost as StreamLostEvent
from seedance_wire.errors import CloseCode
from seedance_wire.messages import Error, ErrorCode, Refused, ResumeFailure

__all__ = ["error_of_close", "error_of_loss", "error_of_resume", "error_of_status", "error_of_wire"]

_BY_CODE: dict[ErrorCode, type[SeedanceError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        ContextLengthExceeded,
        CapacityExceeded,
        ModelNotFound,
        TemplateRefused,
        Unsupported,
        Overloaded,
        RateLimited,
        Draining,
        DeadlineExceeded,
        NumericalError,
        EngineFailed,
        InternalServerError,
        IdempotencyMismatch,
        JournalFull,
        FingerprintMismatch,
        Abandoned,
    )
    if kind.code is not None
}

_CODES = frozenset(code.value for code in _BY_CODE)

_BY_STATUS: dict[int, type[SeedanceError]] = {
    401: AuthenticationError,
    403: PermissionDenied,
    429: RateLimited,
    503: Overloaded,
}

_BY_CLOSE_CODE: dict[int, type[SeedanceError]] = {
    1002: ProtocolError,
    1003: ProtocolError,
    1007: ProtocolError,
    1008: PermissionDenied,
    1009: RequestTooLarge,
    1013: Overloaded,
    4400: ProtocolError,
    4401: AuthenticationError,
    4403: PermissionDenied,
    4409: Superseded,
    4410: StreamTruncated,
    4429: RateLimited,
}


def error_of_wire(message: Refused | Error) -> SeedanceError:
    """Returns the exception for a REFUSED message or an ERROR frame, with its data as attributes."""
    return _BY_CODE[message.code](
        message.message,
        field=message.field if isinstance(message, Refused) else None,
        retryable=message.retryable,
        retry_after_ms=message.retry_after_ms,
    )


def error_of_status(
    status: int, detail: str, retry_after_ms: int | None, *, error_code: str | None = None
) -> SeedanceError:
    """Returns the exception for an HTTP answer other than 101 to the upgrade.

    Args:
        status: The HTTP status.
        detail: The first words of the answer's body, for the message.
        retry_after_ms: From the ``Retry-After`` header, in milliseconds.
        error_code: From the ``Seedance-Error`` header, which says more than the status; one that this version
            does not know says nothing.
    """
    kind = _BY_STATUS.get(status, UpgradeRefused)
    if error_code in _CODES:
        kind = _BY_CODE[ErrorCode(error_code)]
    message = f"the server refused the connection with HTTP status {status}"
    return kind(f"{message}: {detail}" if detail else message, status=status, retry_after_ms=retry_after_ms)


def error_of_close(close_code: int, reason: str) -> SeedanceError:
    """Returns the exception for a connection that the server closed; an unknown code counts as lost."""
    kind = _BY_CLOSE_CODE.get(close_code, ConnectionLost)
    try:
        name = CloseCode(close_code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown code"
    said = f": {reason}" if reason else ""
    return kind(
        f"the connection was closed with {close_code} ({name}){said}",
        close_code=close_code,
        reason=reason,
    )


_BY_FAILURE: dict[ResumeFailure, tuple[type[SeedanceError], str]] = {
    ResumeFailure.NOT_FOUND: (StreamNotFound, "the server knows no such stream"),
    ResumeFailure.EXPIRED: (StreamExpired, "the server keeps the stream no more"),
    ResumeFailure.TRUNCATED: (StreamTruncated, "what comes next in the stream is kept no more"),
    ResumeFailure.CURSOR_AHEAD: (CursorAhead, "the stream ends before the position to go on from"),
    ResumeFailure.DIVERGED: (Diverged, "the text received is not the text that the server has"),
    ResumeFailure.FINGERPRINT_MISMATCH: (FingerprintMismatch, "only another model could go on"),
    ResumeFailure.SUPERSEDED: (Superseded, "a newer connection took the stream over"),
}


def error_of_resume(
    failure: ResumeFailure, *, first_available_id: int = 1, last_id: int = 0
) -> SeedanceError:
    """Returns the exception for a stream that can't go on.

    Args:
        failure: Why.
        first_available_id: What the server still has of it, first and
        last_id: last.
    """
    kind, message = _BY_FAILURE[failure]
    if not issubclass(kind, StreamLost):
        return kind(message)
    if last_id:
        message += f"; it has pieces {first_available_id} to {last_id}"
    return kind(message, first_available_id=first_available_id, last_id=last_id)


def error_of_loss(event: StreamLostEvent, ended_by: SeedanceError | None) -> SeedanceError:
    """Returns the exception for a stream, or a request, that can't be had any more.

    Args:
        event: What the session's core says; with no failure, the stream was bound to its connection.
        ended_by: Why that connection ended, if it did.
    """
    if event.failure is not None:
        return error_of_resume(
            event.failure, first_available_id=event.first_available_id, last_id=event.last_id
        )
    if ended_by is None or isinstance(ended_by, RequestTooLarge):  # that is the fault of another request
        return ConnectionLost("the stream was lost with its connection")
    return ended_by

"""Everything that this package raises, by who is at fault.

SeedanceError
├── ClientClosed                 the caller used a client after closing it
├── StreamClosed                 the caller used a stream after closing it
├── UnsupportedEventLoop         the async client was entered outside trio
├── RequestRefused               the request is at fault; sending it again changes nothing
│   ├── InvalidRequest           a field is missing, out of range or contradicts another (also a ValueError)
│   │   └── RequestTooLarge      the request does not fit one message
│   ├── ContextLengthExceeded    the prompt does not fit the model
│   ├── CapacityExceeded         the prompt fits the model, never this server's memory
│   ├── ModelNotFound            the server serves another model
│   ├── TemplateRefused          the model's chat template refused the messages
│   ├── IdempotencyMismatch      its key belongs to another request
│   └── Unsupported              the server does not offer it
├── Unavailable                  the server can't take it now; try again, after ``retry_after_ms`` if given
│   ├── Overloaded               its limit on work is reached
│   │   └── RateLimited          this client's own limit is reached
│   ├── JournalFull              it has no room to keep another stream
│   ├── ReportsFull              this client holds as many reports as it may
│   └── Draining                 it is shutting down
├── OutOfTime                    a bound that the caller set has passed
│   ├── RequestTimeout           nothing happened for ``timeout`` seconds (also a TimeoutError)
│   └── DeadlineExceeded         ``deadline`` passed before the end
├── ServerFailed                 the server is at fault
│   ├── NumericalError           the model gave no usable probabilities for this sequence
│   ├── EngineFailed             its engine stopped
│   └── InternalServerError      it has a bug
├── StreamLost                   the rest of a stream can't be had; ``first_available_id`` says what can
│   ├── StreamNotFound           the server knows no such stream, or not for this client
│   ├── StreamExpired            it was kept as long as streams are kept
│   ├── StreamTruncated          what comes next in it is kept no more, later pieces are
│   ├── CursorAhead              it ends before the position to go on from
│   ├── Diverged                 the text received is not the text that the server has
│   ├── FingerprintMismatch      only another model could go on with it
│   └── Abandoned                nobody was connected for it for too long
└── ConnectionFailed             the connection is at fault
    ├── ConnectFailed            no connection could be made
    ├── ConnectionLost           it ended, and could not be restored in time; ``close_code`` says more
    ├── Superseded               a newer connection of the same session took over
    ├── UpgradeRefused           the server answered the upgrade with an HTTP ``status``
    │   ├── AuthenticationError  the API key is missing or wrong
    │   └── PermissionDenied     the key is known and may not do this
    └── ProtocolError            one side broke the protocol; the message says which

An error is raised afresh for each stream that it ends. All of them can be pickled.
"""

# ruff: noqa: N818 - the names say what happened; "Error" is added only where a name needs it

from __future__ import annotations

from typing import ClassVar, TypedDict, Unpack

from seedance_wire.messages import ErrorCode

__all__ = [
    "Abandoned",
    "AuthenticationError",
    "CapacityExceeded",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextLengthExceeded",
    "CursorAhead",
    "DeadlineExceeded",
    "Diverged",
    "Draining",
    "EngineFailed",
    "FingerprintMismatch",
    "IdempotencyMismatch",
    "InternalServerError",
    "InvalidRequest",
    "JournalFull",
    "ModelNotFound",
    "NumericalError",
    "OutOfTime",
    "Overloaded",
    "PermissionDenied",
    "ProtocolError",
    "RateLimited",
    "ReportsFull",
    "RequestRefused",
    "RequestTimeout",
    "RequestTooLarge",
    "SeedanceError",
    "ServerFailed",
    "StreamClosed",
    "StreamExpired",
    "StreamLost",
    "StreamNotFound",
    "StreamTruncated",
    "Superseded",
    "TemplateRefused",
    "Unavailable",
    "Unsupported",
    "UnsupportedEventLoop",
    "UpgradeRefused",
]


class _ErrorData(TypedDict, total=False):
    """What an error may know, see `SeedanceError`."""

    field: str | None
    retryable: bool | None
    retry_after_ms: int | None
    status: int | None
    close_code: int | None
    reason: str


class SeedanceError(Exception):
    """The root of the tree.

    Attributes:
        code: The wire's name for it, where the server named one.
        field: The request field at fault, as in ``"temperature"`` or ``"messages[0].content"``.
        retryable: Whether the same request may succeed later.
        retry_after_ms: How long the server asks to wait before that, in milliseconds.
        status: The HTTP status, where the upgrade was refused.
        close_code: The WebSocket close code, where the connection was closed.
        reason: The text that came with the close code.
        partial: The text that the application had received when the error struck; "" before the first piece.
    """

    code: ClassVar[ErrorCode | None] = None
    retryable: bool = False

    def __init__(self, message: str, **data: Unpack[_ErrorData]) -> None:
        super().__init__(message)
        self.field = data.get("field")
        if (retryable := data.get("retryable")) is not None:
            self.retryable = retryable
        self.retry_after_ms = data.get("retry_after_ms")
        self.status = data.get("status")
        self.close_code = data.get("close_code")
        self.reason = data.get("reason", "")
        self.partial = ""


class ClientClosed(SeedanceError):
    """The client is closed, or was closed while this call waited."""


class StreamClosed(SeedanceError):
    """The stream was closed by its reader; there is nothing more to take from it."""


class UnsupportedEventLoop(SeedanceError):
    """Neither trio nor asyncio runs here; the async client needs one of them."""


class RequestRefused(SeedanceError):
    """The request is at fault."""


class InvalidRequest(RequestRefused, ValueError):
    """A field is missing, out of range or contradicts another; ``field`` names it."""

    code = ErrorCode.INVALID_REQUEST


class RequestTooLarge(InvalidRequest):
    """The request does not fit one message of this server."""


class ContextLengthExceeded(RequestRefused):
    """The prompt does not fit the model's context."""

    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED


class CapacityExceeded(RequestRefused):
    """The prompt fits the model, but never this server's KV pool."""

    code = ErrorCode.CAPACITY_EXCEEDED


class ModelNotFound(RequestRefused):
    """The server serves another model."""

    code = ErrorCode.MODEL_NOT_FOUND


class TemplateRefused(RequestRefused):
    """The model's chat template refused these messages."""

    code = ErrorCode.TEMPLATE_ERROR


class IdempotencyMismatch(RequestRefused):
    """The request's key was used before, for another request."""

    code = ErrorCode.IDEMPOTENCY_MISMATCH


class Unsupported(RequestRefused):
    """Well-formed, but this server does not offer it."""

    code = ErrorCode.UNSUPPORTED


class Unavailable(SeedanceError):
    """The server can't take the request now."""

    retryable = True


class Overloaded(Unavailable):
    """A limit on connections, streams or waiting requests is reached."""

    code = ErrorCode.OVERLOADED


class RateLimited(Overloaded):
    """This client asks for more than it may."""

    code = ErrorCode.RATE_LIMITED


class JournalFull(Unavailable):
    """The server has no room to keep another stream, so it begins none."""

    code = ErrorCode.JOURNAL_FULL


class ReportsFull(Unavailable):
    """So many reports wait for a server that this client takes no more."""


class Draining(Unavailable):
    """The server is shutting down."""

    code = ErrorCode.DRAINING


class OutOfTime(SeedanceError):
    """A bound that the caller set has passed."""


class RequestTimeout(OutOfTime, TimeoutError):
    """Nothing happened for ``timeout`` seconds; the generation was cancelled."""

    retryable = True


class DeadlineExceeded(OutOfTime):
    """The request's own deadline passed before its end."""

    code = ErrorCode.DEADLINE_EXCEEDED


class ServerFailed(SeedanceError):
    """The server is at fault."""


class NumericalError(ServerFailed):
    """The model produced no usable probabilities for this sequence."""

    code = ErrorCode.NUMERICAL_ERROR


class EngineFailed(ServerFailed):
    """The engine stopped, or again and again at this stream, as `retryable` says."""

    code = ErrorCode.ENGINE_FAILED
    retryable = True


class InternalServerError(ServerFailed):
    """A bug in the server."""

    code = ErrorCode.INTERNAL


class StreamLost(SeedanceError):
    """What is missing of a stream can't be had any more; what was received before is sound.

    Attributes:
        first_available_id: Id of the first piece that the server still has; 1 where it did not say.
        last_id: Id of the last one; 0 where it has none, or did not say.
    """

    def __init__(
        self, message: str, *, first_available_id: int = 1, last_id: int = 0, **data: Unpack[_ErrorData]
    ) -> None:
        super().__init__(message, **data)
        self.first_available_id = first_available_id
        self.last_id = last_id


class StreamNotFound(StreamLost):
    """The server knows no such stream: it was restarted without it, or the stream is another client's."""


class StreamExpired(StreamLost):
    """The stream was kept as long as the server keeps streams."""


class StreamTruncated(StreamLost):
    """What comes next is not kept any more; pieces from ``first_available_id`` on are."""


class CursorAhead(StreamLost):
    """The stream ends before the position to go on from: the position is of another stream or journal."""


class Diverged(StreamLost):
    """The text received is not the beginning of the text that the server has."""


class FingerprintMismatch(StreamLost):
    """Only another model, or another version of it, could go on, and the request did not allow that."""

    code = ErrorCode.FINGERPRINT_MISMATCH


class Abandoned(StreamLost):
    """Nobody was connected for so long that the server ended the stream."""

    code = ErrorCode.ABANDONED


class ConnectionFailed(SeedanceError):
    """The connection is at fault."""


class ConnectFailed(ConnectionFailed):
    """No connection could be made: name, network, TLS or time."""

    retryable = True


class ConnectionLost(ConnectionFailed):
    """The connection ended before the answer did, and could not be restored in time."""

    retryable = True


class Superseded(ConnectionFailed):
    """A newer connection of the same session took over; this one must not fight for it."""


class UpgradeRefused(ConnectionFailed):
    """The server answered the upgrade with an HTTP status of its own, in ``status``."""


class AuthenticationError(UpgradeRefused):
    """The API key is missing or wrong."""


class PermissionDenied(UpgradeRefused):
    """The server knows who asks, and refuses."""


class ProtocolError(ConnectionFailed):
    """One side broke the protocol; the message says which."""

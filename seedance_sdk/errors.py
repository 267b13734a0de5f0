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
│   └── Unsupported              the server does not offer it
├── Unavailable                  the server can't take it now; try again, after ``retry_after_ms`` if given
│   ├── Overloaded               its limit on work is reached
│   │   └── RateLimited          this client's own limit is reached
│   └── Draining                 it is shutting down
├── OutOfTime                    a bound that the caller set has passed
│   ├── RequestTimeout           nothing happened for ``timeout`` seconds (also a TimeoutError)
│   └── DeadlineExceeded         ``deadline`` passed before the end
├── ServerFailed                 the server is at fault
│   ├── NumericalError           the model gave no usable probabilities for this sequence
│   ├── EngineFailed             its engine stopped
│   └── InternalServerError      it has a bug
└── ConnectionFailed             the connection is at fault
    ├── ConnectFailed            no connection could be made
    ├── ConnectionLost           it ended in the middle; ``close_code`` and ``reason`` say more
    ├── Superseded               a newer connection of the same session took over
    ├── UpgradeRefused           the server answered the upgrade with an HTTP ``status``
    │   ├── AuthenticationError  the API key is missing or wrong
    │   └── PermissionDenied     the key is known and may not do this
    └── ProtocolError            one side broke the protocol; the message says which

An error is raised afresh for each stream that it ends. All of them can be pickled.
"""

# ruff: noqa: N818 - the names say what happened; "Error" is added only where a name needs it

from __future__ import annotations

from typing import ClassVar

from seedance_wire.errors import CloseCode
from seedance_wire.messages import Error, ErrorCode, Refused

__all__ = [
    "AuthenticationError",
    "CapacityExceeded",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Draining",
    "EngineFailed",
    "InternalServerError",
    "InvalidRequest",
    "ModelNotFound",
    "NumericalError",
    "OutOfTime",
    "Overloaded",
    "PermissionDenied",
    "ProtocolError",
    "RateLimited",
    "RequestRefused",
    "RequestTimeout",
    "RequestTooLarge",
    "SeedanceError",
    "ServerFailed",
    "StreamClosed",
    "Superseded",
    "TemplateRefused",
    "Unavailable",
    "Unsupported",
    "UnsupportedEventLoop",
    "UpgradeRefused",
    "error_of_close",
    "error_of_status",
    "error_of_wire",
]


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

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        status: int | None = None,
        close_code: int | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.field = field
        if retryable is not None:
            self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.status = status
        self.close_code = close_code
        self.reason = reason
        self.partial = ""


class ClientClosed(SeedanceError):
    """The client is closed, or was closed while this call waited."""


class StreamClosed(SeedanceError):
    """The stream was closed by its reader; there is nothing more to take from it."""


class UnsupportedEventLoop(SeedanceError):
    """The async client runs on trio only, and another library runs here."""


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
    """The engine stopped; the request may be sent again."""

    code = ErrorCode.ENGINE_FAILED
    retryable = True


class InternalServerError(ServerFailed):
    """A bug in the server."""

    code = ErrorCode.INTERNAL


class ConnectionFailed(SeedanceError):
    """The connection is at fault."""


class ConnectFailed(ConnectionFailed):
    """No connection could be made: name, network, TLS or time."""

    retryable = True


class ConnectionLost(ConnectionFailed):
    """The connection ended before the answer did."""

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
    )
    if kind.code is not None
}

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


def error_of_status(status: int, detail: str, retry_after_ms: int | None) -> SeedanceError:
    """Returns the exception for an HTTP answer other than 101 to the upgrade.

    Args:
        status: The HTTP status.
        detail: The first words of the answer's body, for the message.
        retry_after_ms: From the ``Retry-After`` header, in milliseconds.
    """
    kind = _BY_STATUS.get(status, UpgradeRefused)
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

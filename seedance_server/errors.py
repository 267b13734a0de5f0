"""Everything the server raises of its own, as one tree.

    ServerError
    ├── StartupError            the operator: a flag, a port, a limit; one line on stderr and exit status 2
    │   ├── ConfigError         a setting is out of range or contradicts another
    │   ├── KeyFileError        the key file can't be read or written
    │   ├── ListenError         the address can't be listened on
    │   └── SettingsFileError   the file of settings can't be read or says something that it can't
    ├── BadClientHello          the client: this is no TLS handshake; answered with an alert
    ├── BadRequestHead          the client: this is no HTTP request; answered with a status
    ├── RequestRefused          the client: this request can't be served, the connection stays
    ├── EngineStopped           the engine is gone, and the process goes with it: exit status 3
    ├── OutboxClosed            the connection is closing, nothing more can be sent on it
    ├── SessionLost             the session isn't ours any more, or not just now: stop, touch nothing
    │   └── Superseded          a newer connection of the same client has it
    └── StreamGivenUp           process after process ended with this stream in the engine

Each holds its data as attributes. Errors of the wire are `seedance_wire.errors`, errors of a generation are
`seedance_server.engine.errors`; a StartupError never carries a traceback to the operator.
"""
# ruff: noqa: N818 - these names are the words of the domain; "Error" is added only where the word needs it

from __future__ import annotations

from pathlib import Path

from attrs import define

from seedance_wire.messages import ErrorCode

__all__ = [
    "BadClientHello",
    "BadRequestHead",
    "ConfigError",
    "EngineStopped",
    "KeyFileError",
    "ListenError",
    "OutboxClosed",
    "RequestRefused",
    "ServerError",
    "SessionLost",
    "SettingsFileError",
    "StartupError",
    "StreamGivenUp",
    "Superseded",
]


class ServerError(Exception):
    """Base of everything the server raises on purpose."""


class StartupError(ServerError):
    """The server can't start like this; ``str()`` is the one line that the operator reads."""


@define
class ConfigError(StartupError):
    """A setting can't be used.

    Attributes:
        setting: The flag, as the operator would type it.
        reason: What is wrong with it and what would be right.
    """

    setting: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} {self.reason}"


@define
class KeyFileError(StartupError):
    """The key file can't be used; nothing was changed.

    Attributes:
        path: The file.
        reason: What is wrong with it.
    """

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"key file {self.path} {self.reason}"


@define
class ListenError(StartupError):
    """The address can't be listened on.

    Attributes:
        host: The address as configured.
        port: The port as configured.
        reason: What the operating system said, in words.
    """

    host: str
    port: int
    reason: str

    def __str__(self) -> str:
        return f"can't listen on {self.host} port {self.port}: {self.reason}"


@define
class SettingsFileError(StartupError):
    """The file of settings can't be used.

    Attributes:
        path: The file.
        reason: What is wrong with it.
    """

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"settings file {self.path} {self.reason}"


class BadClientHello(ServerError):
    """What came isn't the beginning of a TLS handshake; ``str()`` says why."""


@define
class BadRequestHead(ServerError):
    """What came isn't a request that anything here could answer.

    Attributes:
        status: The HTTP status that says so.
        reason: In words fit for the client.
    """

    status: int
    reason: str

    def __str__(self) -> str:
        return self.reason


@define
class RequestRefused(ServerError):
    """One SUBMIT can't be served; becomes a REFUSED message.

    Attributes:
        code: Who is at fault.
        reason: What to do, in words fit for the client.
        field: The field at fault, if one is.
        retry_after_ms: Set where the same request may succeed later.
    """

    code: ErrorCode
    reason: str
    field: str | None = None
    retry_after_ms: int | None = None

    def __str__(self) -> str:
        return self.reason


@define
class EngineStopped(ServerError):
    """The engine takes no more work and makes no more tokens.

    Attributes:
        cause: What stopped it, one line for logs and readiness; never sent to clients.
    """

    cause: str

    def __str__(self) -> str:
        return f"the engine has stopped: {self.cause}"


class OutboxClosed(ServerError):
    """The connection is closing: nothing more is taken for it."""


class SessionLost(ServerError):
    """Somebody else owns the session, or the journal failed under it; what it was is in the journal."""


class Superseded(SessionLost):
    """A newer connection has attached to the session."""


@define
class StreamGivenUp(ServerError):
    """Process after process ended with this stream in the engine, without getting on with it.

    Attributes:
        attempts: How many.
    """

    attempts: int

    def __str__(self) -> str:
        return f"the server ended {self.attempts} times at this place of the answer: it isn't tried again"

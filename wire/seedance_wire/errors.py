"""Errors of the protocol, each saying whose fault it is, and the close codes that tell the peer.

    WireError
    ├─ LocalProtocolError      this side broke the rules; nothing was sent and nothing changed
    │  ├─ MessageTooLargeError      the message is over the peer's limit; ``size_bytes``, ``limit_bytes``
    │  └─ BacklogFullError          too many messages wait for their answer; ``limit``
    ├─ InvalidBookmarkError    a text is no bookmark
    └─ RemoteProtocolError     the peer broke the rules; close with ``close_code``
       ├─ DecodeError          its bytes are no message of this encoding
       └─ DivergedError        its text of a stream is not the one that we have; ``stream_id``

Nothing else leaves this package for anything that a peer may send.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "BacklogFullError",
    "CloseCode",
    "DecodeError",
    "DivergedError",
    "InvalidBookmarkError",
    "LocalProtocolError",
    "MessageTooLargeError",
    "RemoteProtocolError",
    "WireError",
]


class CloseCode(IntEnum):
    """WebSocket close codes (RFC 6455 section 7.4.1 below 4000, ours from 4000)."""

    NORMAL = 1000
    """Done."""
    GOING_AWAY = 1001
    """The node leaves."""
    PROTOCOL_ERROR = 1002
    """WebSocket framing was violated."""
    UNSUPPORTED_DATA = 1003
    """Text where binary was agreed on, or the reverse."""
    NO_STATUS = 1005
    """Never sent: the peer closed without a code."""
    ABNORMAL = 1006
    """Never sent: the connection was cut."""
    INVALID_DATA = 1007
    """A text message was not UTF-8."""
    POLICY_VIOLATION = 1008
    """Refused."""
    MESSAGE_TOO_BIG = 1009
    """Over ``max_message_bytes``."""
    INTERNAL_ERROR = 1011
    """The server failed."""
    SERVICE_RESTART = 1012
    """The server restarts."""
    TRY_AGAIN_LATER = 1013
    """Overloaded."""
    TLS_FAILED = 1015
    """Never sent: there was no TLS session."""
    NODE_LEAVES = 4001
    """As 1001, where a proxy would keep that one for itself."""
    BAD_MESSAGE = 4400
    """A message was malformed, or legal but not at this moment."""
    UNAUTHENTICATED = 4401
    """No key, or a wrong one."""
    FORBIDDEN = 4403
    """The key may not do this."""
    TIMED_OUT = 4408
    """The peer did not speak in time."""
    SUPERSEDED = 4409
    """A newer connection took over."""
    JOURNAL_GONE = 4410
    """What is needed to go on is kept no more."""
    FENCED = 4412
    """Another node owns the session."""
    SLOW_READER = 4413
    """The peer did not read in time."""
    QUOTA_EXCEEDED = 4429
    """The peer sends faster than it may."""


class WireError(Exception):
    """Base of this package's errors."""


class LocalProtocolError(WireError):
    """This side tried what the protocol does not allow; the connection is as it was before the call."""


class MessageTooLargeError(LocalProtocolError):
    """A message that the peer would refuse to read.

    Attributes:
        size_bytes: Size of the encoded message.
        limit_bytes: Most that the peer reads.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"the message has {size_bytes} bytes, the peer reads at most {limit_bytes}")


class BacklogFullError(LocalProtocolError):
    """So many messages wait for their answer that no more are taken.

    Attributes:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{limit} messages wait for their answer; no more are kept")


class InvalidBookmarkError(WireError):
    """A text is not what `Bookmark.to_str` wrote."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a bookmark: {reason}")


class RemoteProtocolError(WireError):
    """The peer broke the protocol; the connection cannot go on.

    Attributes:
        close_code: What to close the WebSocket with.
    """

    def __init__(self, message: str, close_code: CloseCode = CloseCode.BAD_MESSAGE) -> None:
        self.close_code = close_code
        super().__init__(message)


class DecodeError(RemoteProtocolError):
    """The peer's bytes are not a message of the encoding agreed on."""


class DivergedError(RemoteProtocolError):
    """A digest shows that the text of a stream here is not the one that the server keeps.

    Attributes:
        stream_id: The stream.
    """

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        super().__init__(f"stream {stream_id}: the text is not the one that was sent")

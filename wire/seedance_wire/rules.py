"""The rules of who may say what when: the tables, and the essay that says how `state.py` follows them.

Both ends run this same machine on the same messages, so there is one table for the connection and one for
each stream, and a role only decides whose fault a violation is. How it is used, in order:

1. A message is looked up as (state, kind) in `CONNECTION_TABLE`; no entry, no such message now. A FLUSH that
   ends its stream has the kind `Final`. Who may send a kind follows from the kind: `CLIENT_KINDS`,
   `SERVER_KINDS`.
2. The two directions cross in flight. A SUBMIT may have left before its sender saw GOAWAY, so the *receiver*
   accepts what `CROSSINGS` adds (and refuses the request politely), the sender does not. After BYE the client
   looks at nothing that still arrives.
3. A message about a stream is then looked up in `STREAM_TABLE`. A stream that is not known is IDLE if its
   number was never given out, AWAY if it was: numbers rise, so one integer remembers every stream that ever
   was, and an ACK or CANCEL that crossed with the end of a stream is legal for ever. A session outlives its
   connections: in a new one its earlier streams are AWAY, and only RESUME brings their frames.
4. Between RESUME and RESUMED frames of the stream may still be on their way; whoever receives them drops
   them. After RESUMED frames go on behind `last_processed_id`, at the offset of the first.
5. Rules of arithmetic are not in the tables. SUBMIT, CANCEL and EVENT count up by one, from the session's
   last; where a session goes on they may first repeat, rising, what the server has. Frames are numbered and
   offset as `cursor.py` says, in the session's epoch. An ACK names no frame above the last one sent. For
   streams that are AWAY the last is remembered `REMEMBERED_STREAMS` back.
6. Everything is checked before anything is changed. A violation of ours raises `LocalProtocolError` and
   leaves the machine as it was; one of the peer's raises `RemoteProtocolError` and leaves it in ERROR, for
   good.

The machine knows no encoding, no text and no window, and never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from .messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Error,
    Event,
    Final,
    Flow,
    Flush,
    GoAway,
    Hello,
    Message,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Status,
    Submit,
    Welcome,
)

__all__ = [
    "CLIENT_KINDS",
    "CONNECTION_TABLE",
    "CROSSINGS",
    "MAX_PENDING",
    "REMEMBERED_STREAMS",
    "SERVER_KINDS",
    "STREAM_TABLE",
    "ConnectionState",
    "Kind",
    "Role",
    "StreamState",
]

MAX_PENDING = 1024
"""SUBMITs without an answer, EVENTs, and streams. A server refuses far fewer; this bounds the tables if a
client floods it with them or resumes whatever ever was."""

REMEMBERED_STREAMS = 256
"""Streams that are away whose last frame id is kept to check acknowledgements: four times those of a
connection."""


class _State(Enum):
    """Looked up in the tables for each frame, so hashed by identity: Enum's own hash is a Python function."""

    __hash__ = object.__hash__


class Role(Enum):
    """Which end of the connection."""

    CLIENT = "client"
    SERVER = "server"


class ConnectionState(_State):
    """Where a connection is."""

    START = "start"
    """Nothing was said."""
    GREETING = "greeting"
    """HELLO was said, WELCOME not yet."""
    OPEN = "open"
    """Requests and streams."""
    DRAINING = "draining"
    """GOAWAY was said: streams go on, no new ones."""
    CLOSED = "closed"
    """BYE was said."""
    ERROR = "error"
    """The peer broke the rules."""


class StreamState(_State):
    """Where a stream is."""

    IDLE = "idle"
    """No such stream yet."""
    SUBMITTED = "submitted"
    """Asked for, not answered."""
    ACCEPTED = "accepted"
    """It has a number and no frames."""
    STREAMING = "streaming"
    """It has frames."""
    AWAY = "away"
    """It had its last frame, or was refused, or is one of an earlier connection."""
    RESUMING = "resuming"
    """It was asked for again, and that is not answered."""


Kind: TypeAlias = type[Message] | type[Final]

CLIENT_KINDS: tuple[Kind, ...] = (Hello, Submit, Cancel, Resume, Ack, Event, Bye)
SERVER_KINDS: tuple[Kind, ...] = (
    *(Welcome, Accepted, Refused, Resumed, ResumeRejected),
    *(Delta, Flush, Final, Error, Checkpoint, Flow, Status, GoAway),
)

_S = ConnectionState
_FRAMES: tuple[Kind, ...] = (Delta, Flush, Final, Error)
_TOLD: tuple[Kind, ...] = (Flow, Status)
_ANSWERS: tuple[Kind, ...] = (Accepted, Refused, Resumed, ResumeRejected, *_FRAMES, Checkpoint, *_TOLD)

CONNECTION_TABLE: Mapping[tuple[ConnectionState, Kind], ConnectionState] = MappingProxyType(
    {
        (_S.START, Hello): _S.GREETING,
        (_S.GREETING, Welcome): _S.OPEN,
        (_S.GREETING, Bye): _S.CLOSED,
        **{(_S.OPEN, kind): _S.OPEN for kind in (Submit, Cancel, Resume, Ack, Event, *_ANSWERS)},
        (_S.OPEN, GoAway): _S.DRAINING,
        (_S.OPEN, Bye): _S.CLOSED,
        **{(_S.DRAINING, kind): _S.DRAINING for kind in (Cancel, Resume, Ack, Event, *_ANSWERS)},
        (_S.DRAINING, Bye): _S.CLOSED,
    }
)
"""(state, kind) -> next state; what is absent is forbidden."""

CROSSINGS: Mapping[tuple[ConnectionState, Kind], ConnectionState] = MappingProxyType(
    {(_S.DRAINING, Submit): _S.DRAINING}
)
"""What only a receiver accepts, because it was sent before the sender could know the state."""

_T = StreamState

STREAM_TABLE: Mapping[tuple[StreamState, Kind], StreamState] = MappingProxyType(
    {
        (_T.IDLE, Submit): _T.SUBMITTED,
        (_T.IDLE, Resume): _T.RESUMING,
        (_T.SUBMITTED, Accepted): _T.ACCEPTED,
        (_T.SUBMITTED, Refused): _T.AWAY,
        (_T.ACCEPTED, Delta): _T.STREAMING,
        (_T.ACCEPTED, Flush): _T.STREAMING,
        (_T.ACCEPTED, Final): _T.AWAY,
        (_T.ACCEPTED, Error): _T.AWAY,
        (_T.ACCEPTED, Cancel): _T.ACCEPTED,
        (_T.ACCEPTED, Resume): _T.RESUMING,
        (_T.STREAMING, Delta): _T.STREAMING,
        (_T.STREAMING, Flush): _T.STREAMING,
        (_T.STREAMING, Final): _T.AWAY,
        (_T.STREAMING, Error): _T.AWAY,
        (_T.STREAMING, Cancel): _T.STREAMING,
        (_T.STREAMING, Ack): _T.STREAMING,
        (_T.STREAMING, Resume): _T.RESUMING,
        (_T.RESUMING, Resumed): _T.STREAMING,
        (_T.RESUMING, ResumeRejected): _T.AWAY,
        **{(_T.RESUMING, kind): _T.RESUMING for kind in (*_FRAMES, Cancel, Ack)},
        **{(s, kind): s for s in (_T.ACCEPTED, _T.STREAMING, _T.RESUMING) for kind in _TOLD},
        (_T.AWAY, Resume): _T.RESUMING,
        (_T.AWAY, Cancel): _T.AWAY,
        (_T.AWAY, Ack): _T.AWAY,
    }
)
"""(state, kind) -> next state; what is absent is forbidden. An ACCEPTED that is replayed changes nothing."""

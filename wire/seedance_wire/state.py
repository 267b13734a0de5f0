"""The rules of who may say what when: the only file that holds any.

Both ends run this same machine on the same messages, so there is one table for the connection and one for
each stream, and a role only decides whose fault a violation is. How it is used, in order:

1. A message is looked up as (state, kind) in `CONNECTION_TABLE`; no entry, no such message now. A FLUSH that
   ends its stream has the kind `Final`. Who may send a kind follows from the kind: `CLIENT_KINDS`,
   `SERVER_KINDS`.
2. The two directions cross in flight. A SUBMIT may have left before its sender saw GOAWAY, so the *receiver*
   accepts what `CROSSINGS` adds (and refuses the request politely), the sender does not. After BYE the client
   looks at nothing that still arrives.
3. A message about a stream is then looked up in `STREAM_TABLE`. A stream that is not known is IDLE if its
   number was never given out, ENDED if it was: numbers rise, so one integer remembers every stream that ever
   was, and an ACK or CANCEL that crossed with the end of a stream is legal for ever.
4. Three rules of arithmetic are not in the tables: SUBMIT and CANCEL count up by one; frames are numbered and
   offset as `cursor.py` says, in the session's epoch; an ACK names no frame above the last one sent. For
   ended streams the last is remembered `REMEMBERED_STREAMS` back.
5. Everything is checked before anything is changed. A violation of ours raises `LocalProtocolError` and
   leaves the machine as it was; one of the peer's raises `RemoteProtocolError` and leaves it in ERROR, for
   good.

The machine knows no encoding, no text and no window, and never waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from attrs import frozen

from .cursor import ReceiveCursor, Verdict
from .envelope import CodedDelta, InvalidSubmit, Outgoing
from .errors import CloseCode, LocalProtocolError, RemoteProtocolError
from .messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Delta,
    Error,
    Final,
    Flush,
    Frame,
    GoAway,
    Hello,
    Message,
    Refused,
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
    "ProtocolState",
    "Role",
    "StreamState",
]

MAX_PENDING = 1024
"""SUBMITs without an answer. A server refuses far fewer; this bounds the table if a client floods."""

REMEMBERED_STREAMS = 256
"""Ended streams whose last frame id is kept to check acknowledgements: four times those of a connection."""


class Role(Enum):
    """Which end of the connection."""

    CLIENT = "client"
    SERVER = "server"


class ConnectionState(Enum):
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


class StreamState(Enum):
    """Where a stream is."""

    IDLE = "idle"
    """No such stream yet."""
    SUBMITTED = "submitted"
    """Asked for, not answered."""
    ACCEPTED = "accepted"
    """It has a number and no frames."""
    STREAMING = "streaming"
    """It has frames."""
    ENDED = "ended"
    """It had its last frame, or was refused."""


Kind: TypeAlias = type[Message] | type[Final]

CLIENT_KINDS: tuple[Kind, ...] = (Hello, Submit, Cancel, Ack, Bye)
SERVER_KINDS: tuple[Kind, ...] = (Welcome, Accepted, Refused, Delta, Flush, Final, Error, GoAway)

_S = ConnectionState
_FRAMES: tuple[Kind, ...] = (Delta, Flush, Final, Error)
_ANSWERS: tuple[Kind, ...] = (Accepted, Refused, *_FRAMES)

CONNECTION_TABLE: Mapping[tuple[ConnectionState, Kind], ConnectionState] = MappingProxyType(
    {
        (_S.START, Hello): _S.GREETING,
        (_S.GREETING, Welcome): _S.OPEN,
        (_S.GREETING, Bye): _S.CLOSED,
        **{(_S.OPEN, kind): _S.OPEN for kind in (Submit, Cancel, Ack, *_ANSWERS)},
        (_S.OPEN, GoAway): _S.DRAINING,
        (_S.OPEN, Bye): _S.CLOSED,
        **{(_S.DRAINING, kind): _S.DRAINING for kind in (Cancel, Ack, *_ANSWERS)},
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
        (_T.SUBMITTED, Accepted): _T.ACCEPTED,
        (_T.SUBMITTED, Refused): _T.ENDED,
        (_T.ACCEPTED, Delta): _T.STREAMING,
        (_T.ACCEPTED, Flush): _T.STREAMING,
        (_T.ACCEPTED, Final): _T.ENDED,
        (_T.ACCEPTED, Error): _T.ENDED,
        (_T.ACCEPTED, Cancel): _T.ACCEPTED,
        (_T.STREAMING, Delta): _T.STREAMING,
        (_T.STREAMING, Flush): _T.STREAMING,
        (_T.STREAMING, Final): _T.ENDED,
        (_T.STREAMING, Error): _T.ENDED,
        (_T.STREAMING, Cancel): _T.STREAMING,
        (_T.STREAMING, Ack): _T.STREAMING,
        (_T.ENDED, Cancel): _T.ENDED,
        (_T.ENDED, Ack): _T.ENDED,
    }
)
"""(state, kind) -> next state; what is absent is forbidden."""


@frozen
class _Progress:
    """A live stream: ACCEPTED or STREAMING."""

    state: StreamState
    cursor: ReceiveCursor


class ProtocolState:
    """The state of one connection, seen from one end.

    Args:
        role: This end. Its own violations are local errors, the other end's remote ones.
        max_streams: Streams that a server may have running here at once.

    Attributes:
        connection: Where the connection is.
        next_sequence_id: What the client's next SUBMIT or CANCEL carries; known from WELCOME on.
    """

    def __init__(self, role: Role, max_streams: int) -> None:
        self.connection = ConnectionState.START
        self.next_sequence_id = 1
        self._role = role
        self._max_streams = max_streams
        self._epoch = 0
        self._pending: set[int] = set()  # sequence ids of SUBMITs without an answer
        self._streams: dict[int, _Progress] = {}
        self._ended: OrderedDict[int, int] = OrderedDict()  # stream id -> last frame id, oldest first
        self._highest_stream_id = 0

    @property
    def pending_submits(self) -> int:
        """SUBMITs without an answer."""
        return len(self._pending)

    @property
    def open_streams(self) -> int:
        """Streams that were accepted and have not ended."""
        return len(self._streams)

    def fail(self) -> None:
        """Enters ERROR, for good."""
        self.connection = ConnectionState.ERROR

    def judge(self, frame: Frame | CodedDelta) -> Verdict:
        """Says what the receiving client does with a frame; changes nothing.

        Raises:
            RemoteProtocolError: The stream never was, or has ended before this frame, or a frame is missing.
        """
        progress = self._streams.get(frame.stream_id)
        if progress is not None:
            verdict = progress.cursor.judge(frame)
            if verdict is Verdict.GAP:
                raise RemoteProtocolError(_misnumbered(frame, progress.cursor))
            return verdict
        if frame.epoch < self._epoch:
            return Verdict.STALE
        if frame.id <= self._ended.get(frame.stream_id, 0):
            return Verdict.DUPLICATE
        raise RemoteProtocolError(
            f"a frame of stream {frame.stream_id}, which {self._absence(frame.stream_id)}"
        )

    def advance(self, speaker: Role, message: Outgoing | InvalidSubmit) -> None:
        """Takes a message that is no frame, sent or received, or refuses it and changes nothing.

        Args:
            speaker: Who said it.
            message: What.

        Raises:
            LocalProtocolError: This end sent what it may not.
            RemoteProtocolError: The other end did; the caller calls `fail`.
        """
        kind = _kind(message)
        state = self._next_connection_state(kind, speaker)
        match message:
            case Welcome():
                self._epoch = message.epoch
                self.next_sequence_id = message.last_sequence_id + 1
            case Submit() | InvalidSubmit():
                self._check_sequence(message.sequence_id, speaker)
                if len(self._pending) == MAX_PENDING:
                    raise self._fault(
                        speaker, f"{MAX_PENDING} SUBMITs are unanswered", CloseCode.QUOTA_EXCEEDED
                    )
                self._pending.add(message.sequence_id)
                self.next_sequence_id += 1
            case Cancel():
                self._check_sequence(message.sequence_id, speaker)
                self._check_stream(message.stream_id, kind, speaker)
                self.next_sequence_id += 1
            case Ack():
                for stream_id, frame_id in message.processed:
                    self._check_stream(stream_id, kind, speaker)
                    self._check_processed(stream_id, frame_id, speaker)
            case Accepted():
                self._check_accepted(message, speaker)
                self._pending.remove(message.sequence_id)
                accepted = STREAM_TABLE[StreamState.SUBMITTED, Accepted]
                self._streams[message.stream_id] = _Progress(accepted, ReceiveCursor(self._epoch))
                self._highest_stream_id = message.stream_id
            case Refused():
                self._check_pending(message.sequence_id, kind, speaker)
                self._pending.remove(message.sequence_id)
        self.connection = state

    def advance_frames(
        self, speaker: Role, frames: Sequence[Frame | CodedDelta], text_bytes: Sequence[int]
    ) -> None:
        """Takes the frames of one envelope, sent or received, all of them or none.

        Args:
            speaker: Who sent them.
            frames: One or more, of any streams.
            text_bytes: UTF-8 bytes of the text of each; 0 for any but a DELTA.

        Raises:
            LocalProtocolError: This end sent what it may not.
            RemoteProtocolError: The other end did; the caller calls `fail`.
        """
        changed: dict[int, _Progress] = {}
        for frame, size in zip(frames, text_bytes, strict=True):
            kind = _kind(frame)
            self._next_connection_state(kind, speaker)  # no frame changes it
            stream_id = frame.stream_id
            progress = changed.get(stream_id) or self._streams.get(stream_id)
            state = self._state_of(stream_id) if progress is None else progress.state
            following = STREAM_TABLE.get((state, kind))
            if progress is None or following is None:
                reason = f"a frame of stream {stream_id}, which {self._absence(stream_id)}"
                raise self._fault(speaker, reason)
            if progress.cursor.judge(frame) is not Verdict.APPLY or frame.epoch != self._epoch:
                raise self._fault(speaker, _misnumbered(frame, progress.cursor))
            changed[stream_id] = _Progress(following, progress.cursor.after(frame, size))
        for stream_id, progress in changed.items():
            if progress.state is StreamState.ENDED:
                del self._streams[stream_id]
                self._ended[stream_id] = progress.cursor.applied
                if len(self._ended) > REMEMBERED_STREAMS:
                    self._ended.popitem(last=False)
            else:
                self._streams[stream_id] = progress

    # ---- checks; none changes anything

    def _next_connection_state(self, kind: Kind, speaker: Role) -> ConnectionState:
        if kind not in (CLIENT_KINDS if speaker is Role.CLIENT else SERVER_KINDS):
            raise self._fault(speaker, f"{kind.__name__} is not for the {speaker.value} to say")
        state = CONNECTION_TABLE.get((self.connection, kind))
        if state is None and speaker is not self._role:
            state = CROSSINGS.get((self.connection, kind))
        if state is None:
            reason = (
                f"{kind.__name__} is not allowed from the {speaker.value} in state {self.connection.value}"
            )
            raise self._fault(speaker, reason)
        return state

    def _state_of(self, stream_id: int) -> StreamState:
        progress = self._streams.get(stream_id)
        if progress is not None:
            return progress.state
        return StreamState.ENDED if stream_id <= self._highest_stream_id else StreamState.IDLE

    def _absence(self, stream_id: int) -> str:
        return "has ended" if self._state_of(stream_id) is StreamState.ENDED else "never began"

    def _check_stream(self, stream_id: int, kind: Kind, speaker: Role) -> None:
        state = self._state_of(stream_id)
        if (state, kind) not in STREAM_TABLE:
            raise self._fault(speaker, f"{kind.__name__} for stream {stream_id}, which is {state.value}")

    def _check_pending(self, sequence_id: int, kind: Kind, speaker: Role) -> None:
        if sequence_id not in self._pending:
            raise self._fault(speaker, f"{kind.__name__} for {sequence_id}, which is no unanswered SUBMIT")

    def _check_sequence(self, sequence_id: int, speaker: Role) -> None:
        if sequence_id != self.next_sequence_id:
            raise self._fault(speaker, f"sequence id {sequence_id} where {self.next_sequence_id} is next")

    def _check_processed(self, stream_id: int, frame_id: int, speaker: Role) -> None:
        progress = self._streams.get(stream_id)
        last = self._ended.get(stream_id) if progress is None else progress.cursor.applied
        if last is not None and frame_id > last:
            raise self._fault(speaker, f"Ack of frame {frame_id} of stream {stream_id}, whose last is {last}")

    def _check_accepted(self, message: Accepted, speaker: Role) -> None:
        self._check_pending(message.sequence_id, Accepted, speaker)
        if message.stream_id <= self._highest_stream_id:
            reason = f"stream id {message.stream_id} after {self._highest_stream_id}: they rise"
            raise self._fault(speaker, reason)
        if speaker is self._role and len(self._streams) >= self._max_streams:
            raise self._fault(speaker, f"more than {self._max_streams} streams")

    def _fault(
        self, speaker: Role, reason: str, close_code: CloseCode = CloseCode.BAD_MESSAGE
    ) -> LocalProtocolError | RemoteProtocolError:
        if speaker is self._role:
            return LocalProtocolError(reason)
        return RemoteProtocolError(reason, close_code)


def _kind(message: Outgoing | InvalidSubmit) -> Kind:
    match message:
        case Flush() if message.final is not None:
            return Final
        case InvalidSubmit():
            return Submit
        case CodedDelta():
            return Delta
    return type(message)


def _misnumbered(frame: Frame | CodedDelta, cursor: ReceiveCursor) -> str:
    return (
        f"stream {frame.stream_id}: frame {frame.id} of epoch {frame.epoch} at offset {frame.offset}, "
        f"after frame {cursor.applied} of epoch {cursor.epoch} and {cursor.applied_bytes} bytes"
    )

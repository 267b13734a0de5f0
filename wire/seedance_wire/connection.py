"""One connection without I/O: messages in and out of whole WebSocket messages, for either end.

    payload = connection.send(Hello(…))        # give it to the WebSocket
    connection.receive_data(payload)           # one WebSocket message, as it came
    while (event := connection.next_event()) is not None: …

What a caller sees obeys the protocol: every message is legal at its moment (`state.py`), every DELTA is the
next piece of its stream, as plain text (`cursor.py`, `delta.py`), and the text of a stream that ended well
has the digest that the server computed. The bytes are the codec's business, waiting is the caller's.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from attrs import frozen

from .capabilities import PIECES, ZSTD
from .codec import make_codec
from .compression import TRIAL_MESSAGES
from .cursor import ReceiveCursor
from .envelope import CodedDelta, Gap, InvalidSubmit, Pieces, check_envelope
from .errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
)
from .frame_writer import FrameWriter
from .messages import (
    Accepted,
    Checkpoint,
    Delta,
    Error,
    Flush,
    Frame,
    Hello,
    Message,
    Resumed,
    ResumeRejected,
    Welcome,
)
from .piece_reader import Missing, PieceReader
from .received_streams import ReceivedStreams
from .running_digest import RunningDigest
from .state import ConnectionState, ProtocolState, Role
from .traffic import Traffic

__all__ = ["MAX_MESSAGE_BYTES", "Connection", "ConnectionStatistics", "Event", "Gap", "InvalidSubmit"]

MAX_MESSAGE_BYTES = 262_144
"""Longest message that each end reads unless agreed otherwise, and the longest that a server sends in any
case.

A window of one stream holds as many bytes, so a client that reads this much can be sent any frame."""


Event: TypeAlias = Message | InvalidSubmit | Gap
"""What `Connection.next_event` returns."""


@frozen(kw_only=True)
class ConnectionStatistics:
    """Counts since the connection began, and how full its tables are."""

    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    plain_bytes_sent: int
    """What ``bytes_sent`` were before they were compressed."""
    plain_bytes_received: int
    frames_sent: int
    frames_received: int
    """Applied; dropped ones are not among them."""
    differences_sent: int
    """DELTA frames that travelled as differences."""
    duplicates_dropped: int
    stale_dropped: int
    """Frames of a former epoch, or that crossed with RESUME."""
    open_streams: int
    pending_submits: int


class Connection:
    """One end of a connection.

    Args:
        role: Which end.
        subprotocol: What the handshake agreed on, one of `codec.SUBPROTOCOLS`.
        max_message_bytes: Longest message to read. A server announces it in WELCOME, and a client sends none
            longer.
        max_streams: Streams that a server may have running at once here. A SUBMIT beyond is no violation; the
            server refuses it, going by ``open_streams`` and ``pending_submits``.
        trial_messages: Messages after which it is decided whether to compress what is sent, where the other
            end can read that; 0 compresses whatever it brings.

    Raises:
        LocalProtocolError: There is no such subprotocol.
    """

    def __init__(
        self,
        role: Role,
        subprotocol: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_streams: int = 64,
        trial_messages: int = TRIAL_MESSAGES,
    ) -> None:
        self._role = role
        self._codec = make_codec(subprotocol)
        self._traffic = Traffic(max_message_bytes, MAX_MESSAGE_BYTES, trial_messages)
        self._state = ProtocolState(role, max_streams)
        self._events: deque[Event] = deque()  # of one WebSocket message, if drained as asked
        self._offered: tuple[str, ...] = ()  # capabilities, in HELLO
        self._writer = FrameWriter(differences=self._codec.carries_differences)
        self._reader: PieceReader | None = None
        self._received = ReceivedStreams(self._state)
        self._frames_sent = self._differences_sent = 0

    @property
    def state(self) -> ConnectionState:
        """Where the connection is."""
        return self._state.connection

    @property
    def role(self) -> Role:
        """Which end this is."""
        return self._role

    @property
    def subprotocol(self) -> str:
        """The subprotocol in use."""
        return self._codec.subprotocol

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Optional features that this end can offer or agree to, by the names of `capabilities.py`."""
        return self._codec.capabilities

    @property
    def is_compressing(self) -> bool:
        """Whether messages may leave compressed from here on; a reader must get each of them, once."""
        return self._traffic.is_compressing

    @property
    def next_sequence_id(self) -> int:
        """What the client's next SUBMIT or CANCEL must carry."""
        return self._state.next_sequence_id

    @property
    def open_streams(self) -> int:
        """Streams that were accepted and have not ended."""
        return self._state.open_streams

    @property
    def pending_submits(self) -> int:
        """SUBMITs that were not answered yet."""
        return self._state.pending_submits

    def know_streams(self, highest_stream_id: int) -> None:
        """Says that streams up to this number began on earlier connections of the session.

        They can be resumed, cancelled and acknowledged here. For a server, before its WELCOME says that the
        session is present.
        """
        self._state.know_streams(highest_stream_id)

    def know_position(self, stream_id: int, cursor: ReceiveCursor, digest: RunningDigest) -> None:
        """Says how far a client has applied a stream on earlier connections; RESUME goes on from there.

        Args:
            stream_id: The stream. It is not being received here.
            cursor: Behind the last frame applied, of whichever epoch.
            digest: Of the text up to there.
        """
        self._received.know(stream_id, cursor, digest)

    def position(self, stream_id: int) -> tuple[ReceiveCursor, RunningDigest] | None:
        """Returns how far a stream came here and the digest of its text, or None if it is not running."""
        return self._received.position(stream_id)

    def fail(self, reason: str) -> RemoteProtocolError:
        """Notes that the peer broke a rule that only the caller knows; the connection is in state ERROR.

        Returns:
            The error, to be raised.
        """
        self._state.fail()
        return RemoteProtocolError(reason)

    def send(self, *messages: Message) -> bytes | str:
        """Notes that these messages are sent, and returns them as one WebSocket message.

        Args:
            *messages: One message, or any number of frames of any streams, in order.

        Returns:
            bytes to be sent as a binary message, or a str to be sent as text. It must be sent, before the
            result of any later call: the connection's state says that it was.

        Raises:
            LocalProtocolError: They are not legal now, may not share a message or hold a value that the
                protocol forbids. Nothing has changed.
            MessageTooLargeError: The peer would not read so long a message. Nothing has changed.
        """
        if self.state is ConnectionState.ERROR:
            raise LocalProtocolError("the peer broke the protocol; nothing more can be sent")
        frames = [message for message in messages if isinstance(message, Delta | Flush | Error)]
        check_envelope(messages)
        draft = self._writer.draft(frames) if frames else None
        payload = self._codec.encode(messages if draft is None else draft.outgoing)
        self._traffic.check(payload)
        if draft is None:
            self._state.advance(self._role, messages[0])
        else:
            self._state.advance_frames(self._role, frames, draft.text_bytes)
        # Nothing below fails: from here on the messages count as sent.
        is_idle = not self._state.open_streams and not self._state.pending_submits
        packed = self._traffic.send(payload, last=is_idle)
        if draft is None:
            self._said(messages[0])
        else:
            self._frames_sent += len(frames)
            self._differences_sent += draft.differences
            self._writer.commit(draft)
        # Where texts are compressed, differences made them no shorter (bench/README.md).
        self._writer.differences = self._codec.carries_differences and not self._traffic.is_compressing
        return packed

    def _said(self, message: Message) -> None:
        match message:
            case Hello():
                self._offered = message.capabilities
            case Welcome():
                self._agree(message)
            case Resumed():
                self._writer.forget(message.stream_id)

    def _agree(self, welcome: Welcome) -> None:
        """Begins what both ends can do, from the message behind WELCOME on."""
        agreed = frozenset(welcome.capabilities) & frozenset(self._offered) & frozenset(self.capabilities)
        self._writer.pieces = PIECES in agreed
        if PIECES in agreed and self._role is Role.CLIENT:
            self._reader = PieceReader(welcome.epoch, self._applied_bytes)
        if ZSTD in agreed:
            self._traffic.allow_compression()

    def receive_data(self, data: bytes | str) -> None:
        """Takes one whole WebSocket message, as bytes if it was binary and as str if it was text.

        Drain `next_event` before the next call: then what is kept here is never more than one message
        brought. After BYE a client ignores what still arrives.

        Raises:
            RemoteProtocolError: The peer broke the protocol. The connection is in state ERROR: frames of this
                message that came before the fault can still be taken, any further call raises. Close with
                ``close_code``.
            DecodeError: The same, because the bytes are no message.
        """
        if self.state is ConnectionState.ERROR:
            raise RemoteProtocolError("the peer broke the protocol before")
        if self.state is ConnectionState.CLOSED and self._role is Role.CLIENT:
            return
        try:
            self._receive(data)
        except RemoteProtocolError:
            self._state.fail()
            raise

    def next_event(self) -> Event | None:
        """Returns the next message received, or None when more data is needed."""
        return self._events.popleft() if self._events else None

    def statistics(self) -> ConnectionStatistics:
        """Returns the counts."""
        traffic = self._traffic
        return ConnectionStatistics(
            messages_sent=traffic.messages_sent,
            messages_received=traffic.messages_received,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            plain_bytes_sent=traffic.plain_bytes_sent,
            plain_bytes_received=traffic.plain_bytes_received,
            frames_sent=self._frames_sent,
            frames_received=self._received.applied,
            differences_sent=self._differences_sent,
            duplicates_dropped=self._received.duplicates
            + (0 if self._reader is None else self._reader.repeated),
            stale_dropped=self._received.stale,
            open_streams=self._state.open_streams,
            pending_submits=self._state.pending_submits,
        )

    # ---- receiving

    def _receive(self, data: bytes | str) -> None:
        plain = self._traffic.receive(data)
        if self._role is Role.SERVER:
            for request in self._codec.decode_client(plain):
                self._state.advance(Role.CLIENT, request)
                if isinstance(request, Hello):
                    self._offered = request.capabilities
                self._events.append(request)
        else:
            self._receive_from_server(plain)

    def _receive_from_server(self, data: bytes | str) -> None:
        for message in self._codec.decode_server(data):
            if isinstance(message, Pieces):
                self._take_pieces(message)
            elif isinstance(message, Delta | CodedDelta | Flush | Error):
                if self._reader is not None:
                    self._reader.note(message)
                self._take(self._received.apply(message))
            else:
                self._state.advance(Role.SERVER, message)
                self._note(message)
                self._events.append(message)

    def _take_pieces(self, pieces: Pieces) -> None:
        if self._reader is None:
            raise DecodeError("pieces, which were not agreed on")
        for frame in self._reader.frames(pieces):
            if isinstance(frame, Missing):
                missing = self._received.running if frame.stream_id is None else (frame.stream_id,)
                for stream_id in missing:
                    self._take(self._received.miss(stream_id))
            else:
                self._take(self._received.apply(frame))

    def _take(self, event: Frame | Gap | None) -> None:
        if event is not None:
            self._events.append(event)

    def _applied_bytes(self, stream_id: int) -> int:
        cursor = self._state.position(stream_id)
        return 0 if cursor is None else cursor.applied_bytes

    def _note(self, message: Message) -> None:
        match message:
            case Welcome():
                self._traffic.max_outgoing_bytes = message.limits.max_message_bytes
                self._agree(message)
            case Accepted() if not message.replayed:
                self._received.begin(message.stream_id)
            case Resumed():
                self._received.resumed(message.stream_id)
                self._forget_number(message.stream_id)
            case ResumeRejected():
                self._received.forget(message.stream_id)
                self._forget_number(message.stream_id)
            case Checkpoint():
                self._received.compare(message)

    def _forget_number(self, stream_id: int) -> None:
        if self._reader is not None:
            self._reader.forget(stream_id)

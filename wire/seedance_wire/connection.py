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

from .codec import make_codec
from .cursor import ReceiveCursor
from .delta import context_after, difference
from .envelope import CodedDelta, Gap, InvalidSubmit, Outgoing
from .errors import (
    CloseCode,
    LocalProtocolError,
    MessageTooLargeError,
    RemoteProtocolError,
)
from .messages import (
    Accepted,
    Checkpoint,
    Delta,
    Error,
    Flush,
    Message,
    Resumed,
    ResumeRejected,
    Welcome,
)
from .received_streams import ReceivedStreams
from .running_digest import RunningDigest
from .state import ConnectionState, ProtocolState, Role

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
    ) -> None:
        self._role = role
        self._codec = make_codec(subprotocol)
        self._max_message_bytes = max_message_bytes
        self._max_outgoing_bytes = MAX_MESSAGE_BYTES
        self._state = ProtocolState(role, max_streams)
        self._events: deque[Event] = deque()  # of one WebSocket message, if drained as asked
        self._contexts: dict[int, int] = {}  # server: delta context of each stream that has one
        self._received = ReceivedStreams(self._state)
        self._messages_sent = self._messages_received = 0
        self._bytes_sent = self._bytes_received = 0
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
        contexts: dict[int, int | None] = {}
        coded: list[Outgoing] = []
        sizes: list[int] = []
        for message in messages:
            outgoing, size = self._code(message, contexts)
            coded.append(outgoing)
            sizes.append(size)
        payload = self._codec.encode(coded)
        size = len(payload if isinstance(payload, bytes) else payload.encode())
        if size > self._max_outgoing_bytes:
            raise MessageTooLargeError(size, self._max_outgoing_bytes)
        frames = [message for message in messages if isinstance(message, Delta | Flush | Error)]
        if frames:  # then there is nothing else: the codec saw to it
            self._state.advance_frames(self._role, frames, sizes)
        else:
            self._state.advance(self._role, messages[0])
        # Nothing below fails: from here on the messages count as sent.
        self._frames_sent += len(frames)
        self._differences_sent += sum(isinstance(outgoing, CodedDelta) for outgoing in coded)
        for stream_id, context in contexts.items():
            if context is None:
                self._contexts.pop(stream_id, None)
            else:
                self._contexts[stream_id] = context
        self._messages_sent += 1
        self._bytes_sent += size
        return payload

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
        return ConnectionStatistics(
            messages_sent=self._messages_sent,
            messages_received=self._messages_received,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            frames_sent=self._frames_sent,
            frames_received=self._received.applied,
            differences_sent=self._differences_sent,
            duplicates_dropped=self._received.duplicates,
            stale_dropped=self._received.stale,
            open_streams=self._state.open_streams,
            pending_submits=self._state.pending_submits,
        )

    # ---- sending

    def _code(self, message: Message, contexts: dict[int, int | None]) -> tuple[Outgoing, int]:
        """Chooses how a text travels; returns that, the text's UTF-8 bytes, and notes the context."""
        if isinstance(message, Flush | Error | Resumed):
            contexts[message.stream_id] = None
        if not isinstance(message, Delta):
            return message, 0
        text, stream_id = message.text, message.stream_id
        if text.isascii():
            size = len(text)
        else:
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise LocalProtocolError("Delta.text holds a lone surrogate") from None
        if not self._codec.carries_differences:
            return message, size
        context = contexts[stream_id] if stream_id in contexts else self._contexts.get(stream_id)
        contexts[stream_id] = context_after(text, context)
        # A difference takes at least one byte a code point, so it never beats ASCII.
        if context is None or size == len(text):
            return message, size
        encoded = difference(text, context)
        if len(encoded) >= size:
            return message, size
        coded = CodedDelta(
            stream_id=stream_id,
            id=message.id,
            epoch=message.epoch,
            offset=message.offset,
            difference=encoded,
            token_count=message.token_count,
            logprobs=message.logprobs,
        )
        return coded, size

    # ---- receiving

    def _receive(self, data: bytes | str) -> None:
        size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
        if size > self._max_message_bytes:
            raise RemoteProtocolError(
                f"a message of {size} bytes, where {self._max_message_bytes} are allowed",
                CloseCode.MESSAGE_TOO_BIG,
            )
        self._messages_received += 1
        self._bytes_received += size
        if self._role is Role.SERVER:
            from_client = self._codec.decode_client(data)
            for request in from_client:
                self._state.advance(Role.CLIENT, request)
                self._events.append(request)
            return
        for message in self._codec.decode_server(data):
            if isinstance(message, Delta | CodedDelta | Flush | Error):
                event = self._received.apply(message)
                if event is not None:
                    self._events.append(event)
                continue
            self._state.advance(Role.SERVER, message)
            self._note(message)
            self._events.append(message)

    def _note(self, message: Message) -> None:
        match message:
            case Welcome():
                self._max_outgoing_bytes = message.limits.max_message_bytes
            case Accepted() if not message.replayed:
                self._received.begin(message.stream_id)
            case Resumed():
                self._received.resumed(message.stream_id)
            case ResumeRejected():
                self._received.forget(message.stream_id)
            case Checkpoint():
                self._received.compare(message)

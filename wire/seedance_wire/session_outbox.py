"""What a client's session has yet to say on the connection that it has.

Messages and RESUMEs in the order in which they became due, then acknowledgements, coalesced. What is lost
with the connection is forgotten here, and given again from `backlog.py` and `session_streams.py` for the next
one. This is where the application's numbers become the session's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import evolve

from .backlog import Backlog, Entry
from .connection import Connection
from .envelope import MAX_ACK_ENTRIES
from .errors import MessageTooLargeError
from .messages import Ack, Cancel, ErrorCode, Event, Refused, ResumeFailure, Submit
from .session_events import SessionEvent, StreamLost
from .session_streams import SessionStreams
from .state import ConnectionState

__all__ = ["SPEAKING", "SessionOutbox"]

SPEAKING = frozenset({ConnectionState.OPEN, ConnectionState.DRAINING})
"""Where a connection is when a session may say anything."""


class SessionOutbox:
    """The messages that are due.

    Args:
        backlog: Where each comes from and what still waits.
        streams: The session's.
        events: Where it is told that a message cannot be sent.
    """

    def __init__(self, backlog: Backlog, streams: SessionStreams, events: deque[SessionEvent]) -> None:
        self._backlog = backlog
        self._streams = streams
        self._events = events
        self._due: deque[Entry | int] = deque()  # messages, and numbers of streams to resume
        self._acks: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._due or self._acks)

    def begin(self, due: Iterable[Entry | int]) -> None:
        """Notes all that is due on a new connection: messages, and streams to resume."""
        self.clear()
        self._due.extend(due)

    def clear(self) -> None:
        """Forgets everything, as the connection is gone."""
        self._due.clear()
        self._acks.clear()

    def add(self, entry: Entry) -> int:
        """Notes that a message is due; returns its number."""
        self._due.append(entry)
        return entry.number

    def cancel(self, number: int) -> int:
        """Notes that a stream's CANCEL is due, once; returns its number.

        Raises:
            BacklogFullError: Too many messages wait; nothing has changed.
        """
        entry = self._backlog.cancel_of(number)
        if entry is not None:
            return entry.number
        return self.add(self._backlog.add(Cancel(sequence_id=1, stream_id=number)))

    def resume(self, number: int) -> None:
        """Notes that a stream is to be resumed, from where it will be by then."""
        self._due.append(number)

    def acknowledge(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Notes what the application has taken: pairs of its number of a stream and a frame id."""
        for number, frame_id in pairs:
            self._streams.take(number, frame_id)
            stream_id = self._streams.stream_id(number)
            if stream_id is not None:
                self._acks[stream_id] = max(frame_id, self._acks.get(stream_id, 0))

    def payloads(self, connection: Connection) -> list[bytes | str]:
        """Returns everything that is due as WebSocket messages; to ``connection`` they count as sent."""
        payloads: list[bytes | str] = []
        while self._due:
            payload = self._payload(connection, self._due.popleft())
            if payload is not None:
                payloads.append(payload)
        acks, self._acks = list(self._acks.items()), {}
        batches = (
            tuple(acks[start : start + MAX_ACK_ENTRIES]) for start in range(0, len(acks), MAX_ACK_ENTRIES)
        )
        payloads.extend(connection.send(Ack(processed=batch)) for batch in batches)
        return payloads

    def _payload(self, connection: Connection, due: Entry | int) -> bytes | str | None:
        if isinstance(due, int):
            live = self._streams.get(due) is not None
            return connection.send(self._streams.resume(due, connection)) if live else None
        waits = isinstance(due.message, Submit) and connection.state is ConnectionState.DRAINING
        sent = isinstance(due.message, Event) and due.sequence_id is not None
        if waits or sent or not self._backlog.holds(due):
            return None  # until the next connection, or for good
        sequence_id = due.sequence_id or connection.next_sequence_id
        message = self._on_the_wire(due, sequence_id)
        if message is None:
            return None
        try:
            payload = connection.send(message)
        except MessageTooLargeError as error:  # this server reads less than the one before
            self._backlog.drop(due)
            code = ErrorCode.INVALID_REQUEST
            self._events.append(Refused(sequence_id=due.number, code=code, message=str(error)))
            return None
        self._backlog.sent(due, sequence_id)
        return payload

    def _on_the_wire(self, entry: Entry, sequence_id: int) -> Submit | Cancel | Event | None:
        """Returns a message in the session's numbers; None, with an event, if its stream is lost."""
        message = entry.message
        if isinstance(message, Cancel):
            stream_id = self._streams.stream_id(message.stream_id)
            return None if stream_id is None else Cancel(sequence_id=sequence_id, stream_id=stream_id)
        if isinstance(message, Event):
            return evolve(message, sequence_id=sequence_id, batch_id=entry.number)
        if message.continues is None:
            return evolve(message, sequence_id=sequence_id)
        continues = self._streams.stream_id(message.continues)
        if continues is None:
            self._backlog.drop(entry)
            lost = StreamLost(sequence_id=entry.number, failure=ResumeFailure.NOT_FOUND)
            self._events.append(lost)
            return None
        return evolve(message, sequence_id=sequence_id, continues=continues)

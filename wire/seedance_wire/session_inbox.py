"""What a server's messages mean to a client's session: events, and what is due because of them.

The connection has checked that each is legal and that frames are whole and in order; here they are related
to what the application asked for, whichever connection that was on. This is where the session's numbers
become the application's, and where it is decided what is lost.
"""

from __future__ import annotations

from collections import deque

from attrs import evolve

from .backlog import Backlog
from .connection import Connection, Event
from .envelope import Gap, InvalidSubmit
from .messages import (
    Accepted,
    Checkpoint,
    Delta,
    Durability,
    Error,
    Flow,
    Flush,
    Frame,
    GoAway,
    Refused,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Status,
    Submit,
    Welcome,
)
from .session_events import SessionEvent, SessionLost, StreamLost
from .session_outbox import SessionOutbox
from .session_streams import LiveStream, SessionStreams

__all__ = ["SessionInbox"]


class SessionInbox:
    """Takes what comes.

    Args:
        backlog: The messages that wait for an answer.
        streams: The session's.
        outbox: Where it is noted what is due.
        events: Where the application finds what happened.

    Attributes:
        welcome: The last WELCOME.
        session_id: The session; None before there is one.
        resume_token: What brings it back; empty if nothing does.
    """

    def __init__(
        self,
        backlog: Backlog,
        streams: SessionStreams,
        outbox: SessionOutbox,
        events: deque[SessionEvent],
    ) -> None:
        self.welcome: Welcome | None = None
        self.session_id: str | None = None
        self.resume_token = b""
        self._backlog = backlog
        self._streams = streams
        self._outbox = outbox
        self._events = events

    def drain(self, connection: Connection) -> None:
        """Takes everything that came on a connection.

        Raises:
            RemoteProtocolError: The server broke a rule that outlives connections.
        """
        while (event := connection.next_event()) is not None:
            self._take(connection, event)

    def _take(self, connection: Connection, event: Event) -> None:
        match event:
            case Delta() | Flush() | Error():
                self._frame(event)
            case Checkpoint():
                self._checkpoint(event)
            case Accepted():
                self._accepted(connection, event)
            case Refused():
                self._refused(event)
            case Welcome():
                self._welcomed(connection, event)
            case Gap():
                self._outbox.resume(self._streams.number(event.stream_id))
            case Resumed():
                self._resumed(event)
            case ResumeRejected():
                number = self._streams.number(event.stream_id)
                self.lose(number, event.code, event.first_available_id, event.last_id)
            case Flow() | Status() | GoAway():
                self._told(event)
            case InvalidSubmit() | _:
                raise AssertionError("a server said what only a client says")

    def _welcomed(self, connection: Connection, welcome: Welcome) -> None:
        former = self.welcome
        self._events.append(welcome)
        if welcome.session_present:
            if former is not None and welcome.epoch < former.epoch:
                raise connection.fail(f"epoch {welcome.epoch} after {former.epoch}")
            self._streams.announce(connection)
            for stream in self._streams:
                self._streams.attach(stream.number, connection)
            resumed = [stream.number for stream in self._streams]
            self._outbox.begin([*resumed, *self._backlog.resend(welcome.last_sequence_id)])
        else:
            lost = [stream for stream in self._streams.lose_all() if stream.wanted]
            if self.session_id is not None:
                self._events.append(SessionLost(session_id=self.session_id))
            self._events.extend(
                StreamLost(stream_id=stream.number, failure=ResumeFailure.NOT_FOUND) for stream in lost
            )
            self._outbox.begin(self._backlog.restart())
        self.welcome = welcome
        self.session_id, self.resume_token = welcome.session_id, welcome.resume_token

    def _accepted(self, connection: Connection, accepted: Accepted) -> None:
        entry = self._backlog.answer(accepted.sequence_id)
        if entry is None or not isinstance(entry.message, Submit):
            return
        number = self._streams.number(accepted.stream_id)
        if not entry.withdrawn:
            self._events.append(evolve(accepted, sequence_id=entry.number, stream_id=number))
        if self._streams.get(number) is not None:
            return  # the same answer, asked for twice
        durable = accepted.durability is not Durability.NONE
        self._streams.begin(
            LiveStream(
                number=number,
                idempotency_key=entry.message.idempotency_key,
                durable=durable,
                wanted=not entry.withdrawn,
            )
        )
        if entry.withdrawn:
            self._outbox.cancel(number)
        if accepted.replayed:
            self._streams.attach(number, connection)
            self._outbox.resume(number)

    def _refused(self, refused: Refused) -> None:
        deferred = self._backlog.defer(refused.sequence_id) if refused.retryable else None
        entry = deferred or self._backlog.answer(refused.sequence_id)
        if entry is not None and not entry.withdrawn:
            self._events.append(evolve(refused, sequence_id=entry.number))

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        streams = tuple(
            evolve(stream, stream_id=self._streams.number(stream.stream_id)) for stream in checkpoint.streams
        )
        confirmed = self._backlog.confirm(checkpoint.sequence_id)
        self._events.append(evolve(checkpoint, sequence_id=confirmed, streams=streams))

    def _frame(self, frame: Frame) -> None:
        number = self._streams.number(frame.stream_id)
        stream = self._streams.get(number)
        if stream is None:
            return  # it was given up
        if stream.wanted:
            self._events.append(frame if number == frame.stream_id else evolve(frame, stream_id=number))
        else:
            self._outbox.acknowledge([(number, frame.id)])
        if isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None):
            self._end(number, frame.id)

    def _resumed(self, resumed: Resumed) -> None:
        number = self._streams.number(resumed.stream_id)
        stream = self._streams.get(number)
        self._streams.give_out(number)
        if not resumed.live and resumed.last_id < resumed.next_id:
            # It is over, and its end was not kept: nothing will come.
            self.lose(number, ResumeFailure.EXPIRED, resumed.first_available_id, resumed.last_id)
        elif stream is not None and stream.wanted:
            self._events.append(evolve(resumed, stream_id=number))

    def _told(self, told: Flow | Status | GoAway) -> None:
        if isinstance(told, GoAway):
            self._events.append(told)
            return
        number = self._streams.number(told.stream_id)
        stream = self._streams.get(number)
        if stream is not None and stream.wanted:
            self._events.append(evolve(told, stream_id=number))

    def _end(self, number: int, last_id: int | None) -> None:
        self._streams.end(number, last_id)
        cancel = self._backlog.cancel_of(number)
        if cancel is not None:
            self._backlog.drop(cancel)

    def lose(
        self, number: int, failure: ResumeFailure | None, first_available_id: int = 1, last_id: int = 0
    ) -> None:
        """Gives a stream up, and says so."""
        stream = self._streams.get(number)
        if stream is None:
            return
        self._end(number, None)
        if stream.wanted:
            lost = StreamLost(
                stream_id=number, failure=failure, first_available_id=first_available_id, last_id=last_id
            )
            self._events.append(lost)

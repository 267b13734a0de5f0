"""A client's session without I/O: what outlives connections, and what to do when one is new.

    payload = session.connect()                # the first message of a new WebSocket
    session.receive_data(payload)              # each WebSocket message that comes
    while (event := session.next_event()) is not None: …
    for payload in session.data_to_send(): …   # after every call
    session.connection_lost()                  # however it ended; then connect() again

Rules that it keeps, whatever is cut and however often:

1. Frames of a stream come out as events each once, in order. A frame that came out is never asked for again.
2. A message that was given in is sent until its answer has come, and acts once (`backlog.py`).
3. On a new connection, after a WELCOME that knows the session: unanswered messages first, then one RESUME
   for each stream that has not ended, from the last frame that came out. A gap is mended in the same way.
4. If the session is gone, `SessionLost` says so. Its unfinished streams are lost, each with a `StreamLost`;
   unanswered SUBMITs are sent in the new session. No stream is ever left without an end or a `StreamLost`.
5. Stream numbers and submission numbers are the application's: they never mean two things, though a server
   that forgot a session counts anew.

It never waits, knows no clock and opens nothing; when to connect again is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import evolve

from .backlog import Backlog
from .bookmark import Bookmark
from .codec import make_codec
from .connection import MAX_MESSAGE_BYTES, Connection, ConnectionStatistics, Event
from .envelope import Gap, InvalidSubmit
from .errors import DivergedError, LocalProtocolError, MessageTooLargeError, RemoteProtocolError
from .messages import (
    Accepted,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    Flush,
    Frame,
    GoAway,
    Hello,
    Refused,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Submit,
    Welcome,
)
from .running_digest import RunningDigest
from .session_events import SessionEvent, SessionLost, StreamLost
from .session_outbox import SPEAKING, SessionOutbox
from .session_streams import LiveStream, SessionStreams
from .state import ConnectionState, Role

__all__ = ["ClientSession", "SessionEvent", "SessionLost", "StreamLost"]


class ClientSession:
    """One client's session.

    Args:
        subprotocol: What the handshake of each WebSocket agrees on, one of `codec.SUBPROTOCOLS`.
        hello: Who is speaking; the session in it is filled in.
        max_message_bytes: Longest message to read.
        max_unconfirmed: Most SUBMITs and CANCELs that wait for their answer.
        bookmark: A place to go on from: the session is attached to, and just this stream resumed. Its
            beginning was never seen here, so at its end the digest of the whole text cannot be compared; the
            server vouches for the part before the bookmark when it accepts the digest in RESUME.

    Raises:
        LocalProtocolError: There is no such subprotocol.
    """

    def __init__(
        self,
        subprotocol: str,
        *,
        hello: Hello,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_unconfirmed: int = 1024,
        bookmark: Bookmark | None = None,
    ) -> None:
        self._codec = make_codec(subprotocol)
        self._hello = hello
        self._max_message_bytes = max_message_bytes
        self._connection: Connection | None = None
        self._welcome: Welcome | None = None  # the last one
        self._session_id: str | None = None
        self._token = b""
        self._streams = SessionStreams()
        self._backlog = Backlog(max_unconfirmed)
        self._events: deque[SessionEvent] = deque()  # of one WebSocket message, if drained as asked
        self._outbox = SessionOutbox(self._backlog, self._streams, self._events)
        self._closing = False
        if bookmark is not None:
            self._session_id, self._token = bookmark.session_id, bookmark.resume_token
            self._streams.begin_from(bookmark)

    # ---- what it is

    @property
    def connected(self) -> bool:
        """Whether WELCOME was received and the connection has not ended."""
        return self._connection is not None and self._connection.state in SPEAKING

    @property
    def session_id(self) -> str | None:
        """The session's name, once there is one."""
        return self._session_id

    @property
    def welcome(self) -> Welcome | None:
        """The last WELCOME."""
        return self._welcome

    @property
    def unanswered(self) -> int:
        """Messages that wait for their answer, sent or not."""
        return len(self._backlog)

    @property
    def open_streams(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    def statistics(self) -> ConnectionStatistics | None:
        """Returns the counts of the connection, if there is one."""
        return None if self._connection is None else self._connection.statistics()

    def bookmark(
        self, stream_id: int, *, last_processed_id: int, offset: int, digest: RunningDigest
    ) -> Bookmark:
        """Returns the place in a stream up to which the application has taken it.

        Behind the end of a stream it is the place before the last frame, so that whoever goes on from there
        learns that the stream ended.

        Args:
            stream_id: The stream.
            last_processed_id: The last frame taken.
            offset: UTF-8 bytes of text up to its end.
            digest: Of that text.

        Raises:
            LocalProtocolError: The stream is none of this session, or the session cannot be come back to.
        """
        if self._session_id is None or not self._token:
            raise LocalProtocolError("the session cannot be come back to")
        return self._streams.bookmark(
            stream_id,
            self._session_id,
            self._token,
            last_processed_id=last_processed_id,
            offset=offset,
            digest=digest,
        )

    # ---- connections

    def connect(self) -> bytes | str:
        """Begins a new connection; one that there is counts as lost.

        Returns:
            HELLO, to be sent as the first message.

        Raises:
            LocalProtocolError: `bye` was called.
        """
        if self._closing:
            raise LocalProtocolError("the session has said BYE")
        self.connection_lost()
        connection = Connection(
            Role.CLIENT, self._codec.subprotocol, max_message_bytes=self._max_message_bytes
        )
        hello = self._hello
        if self._session_id is not None and self._token:
            hello = evolve(hello, session_id=self._session_id, resume_token=self._token)
        payload = connection.send(hello)
        self._connection = connection
        return payload

    def connection_lost(self) -> None:
        """Notes that the connection ended, however; what it had not sent is sent on the next one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._streams.detach(connection)
        self._outbox.clear()
        for stream in self._streams:
            if not stream.durable:
                self._lose(stream.number, None)

    def receive_data(self, data: bytes | str) -> None:
        """Takes one whole WebSocket message; drain `next_event` before the next one.

        Raises:
            LocalProtocolError: There is no connection.
            RemoteProtocolError: The server broke the protocol; close with its ``close_code``. Events before
                the fault can be taken, and the session can go on with another connection.
        """
        connection = self._connection
        if connection is None:
            raise LocalProtocolError("there is no connection")
        try:
            connection.receive_data(data)
        except DivergedError as error:
            self._drain(connection)
            self._lose(self._streams.number(error.stream_id), ResumeFailure.DIVERGED)
            raise
        except RemoteProtocolError:
            self._drain(connection)
            raise
        self._drain(connection)

    def next_event(self) -> SessionEvent | None:
        """Returns what happened next, or None when more data is needed."""
        return self._events.popleft() if self._events else None

    # ---- the application's wishes

    def submit(self, submit: Submit) -> int:
        """Takes a request, to be sent as soon as there is a connection.

        Args:
            submit: The request; its sequence id does not count. ``continues`` is the application's number.

        Returns:
            Its number, which ACCEPTED, REFUSED or `StreamLost` will carry as ``sequence_id``.

        Raises:
            LocalProtocolError: The protocol does not allow it, or its key is that of a request that has not
                ended.
            MessageTooLargeError: It is too long for the server.
            BacklogFullError: Too many wait. In each case nothing has changed.
        """
        key = submit.idempotency_key
        if any(other.idempotency_key == key for other in (*self._backlog.submits(), *self._streams)):
            raise LocalProtocolError("a request under this idempotency key has not ended")
        payload = self._codec.encode((evolve(submit, sequence_id=2**53),))  # as long as it may ever be
        size = len(payload if isinstance(payload, bytes) else payload.encode())
        limit = MAX_MESSAGE_BYTES if self._welcome is None else self._welcome.limits.max_message_bytes
        if size > limit:
            raise MessageTooLargeError(size, limit)
        return self._outbox.add(self._backlog.add(submit))

    def withdraw(self, number: int) -> None:
        """Gives up a request that was not answered: no event is about it any more.

        One that was not sent never will be. One that was sent on this connection is cancelled as soon as it
        is accepted, and its frames are dropped.

        Args:
            number: What `submit` returned.
        """
        self._backlog.withdraw(number)

    def resume(self, bookmark: Bookmark) -> int:
        """Goes on with a stream of this session from a bookmark, beside those that go on already.

        Its frames come out as events from there, behind `Resumed`; or `StreamLost` does.

        Returns:
            The stream's number, as events carry it.

        Raises:
            LocalProtocolError: It is of another session, or the stream is running here.
        """
        if bookmark.session_id != self._session_id:
            raise LocalProtocolError("the bookmark is of another session")
        number = self._streams.number(bookmark.stream_id)
        if self._streams.get(number) is not None:
            raise LocalProtocolError(f"stream {number} is running here")
        self._streams.begin_from(bookmark)
        if self._connection is not None and self.connected:
            self._streams.attach(number, self._connection)
            self._outbox.resume(number)
        return number

    def cancel(self, stream_id: int) -> int:
        """Asks for the end of a stream; for one that has ended, or twice, it changes nothing.

        Returns:
            The number of the message, 0 if there is nothing to say.

        Raises:
            BacklogFullError: Too many messages wait; nothing has changed.
        """
        if self._streams.get(stream_id) is None:
            return 0
        entry = self._backlog.cancel_of(stream_id)
        if entry is not None:
            return entry.number
        return self._outbox.add(self._backlog.add(Cancel(sequence_id=1, stream_id=stream_id)))

    def acknowledge(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Notes what the application has taken, cumulative: pairs of (stream, frame id).

        Raises:
            LocalProtocolError: A frame never came out; nothing has changed.
        """
        pairs = list(pairs)
        for stream_id, frame_id in pairs:
            live = self._streams.get(stream_id)
            last = self._streams.ended_at(stream_id)
            if live is not None:
                last = self._streams.position(stream_id, self._connection)[0].applied
            if last is not None and frame_id > last:
                raise LocalProtocolError(f"frame {frame_id} of stream {stream_id}, whose last was {last}")
        if self._connection is not None:  # the next one begins behind what came out: nothing waits for this
            self._outbox.acknowledge(pairs)

    def bye(self) -> None:
        """Ends the session's connections for good: BYE is the last that `data_to_send` returns."""
        self._closing = True

    def data_to_send(self) -> list[bytes | str]:
        """Returns the WebSocket messages to send now, in order; none while there is no connection.

        They count as sent. A cut that loses them is mended on the next connection.
        """
        connection = self._connection
        if connection is None:
            return []
        payloads = self._outbox.payloads(connection) if connection.state in SPEAKING else []
        if self._closing and connection.state in SPEAKING | {ConnectionState.GREETING}:
            payloads.append(connection.send(Bye()))
        return payloads

    # ---- receiving

    def _drain(self, connection: Connection) -> None:
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
                self._lose(number, event.code, event.first_available_id, event.last_id)
            case GoAway():
                self._events.append(event)
            case InvalidSubmit() | _:
                raise AssertionError("a server said what only a client says")

    def _welcomed(self, connection: Connection, welcome: Welcome) -> None:
        former = self._welcome
        self._events.append(welcome)
        if welcome.session_present:
            if former is not None and welcome.epoch < former.epoch:
                raise connection.fail(f"epoch {welcome.epoch} after {former.epoch}")
            self._streams.announce(connection)
            self._outbox.begin(self._backlog.resend(welcome.last_sequence_id))
            for stream in self._streams:
                self._streams.attach(stream.number, connection)
                self._outbox.resume(stream.number)
        else:
            lost = [stream for stream in self._streams.lose_all() if stream.wanted]
            if self._session_id is not None:
                self._events.append(SessionLost(session_id=self._session_id))
            self._events.extend(
                StreamLost(stream_id=stream.number, failure=ResumeFailure.NOT_FOUND) for stream in lost
            )
            self._outbox.begin(self._backlog.restart())
        self._welcome = welcome
        self._session_id, self._token = welcome.session_id, welcome.resume_token

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
            self.cancel(number)
        if accepted.replayed:
            self._streams.attach(number, connection)
            self._outbox.resume(number)

    def _refused(self, refused: Refused) -> None:
        entry = self._backlog.answer(refused.sequence_id)
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
        if stream is not None and not stream.wanted:
            self._outbox.acknowledge([(number, frame.id)])
        else:
            self._events.append(frame if number == frame.stream_id else evolve(frame, stream_id=number))
        if isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None):
            self._end(number, frame.id)

    def _resumed(self, resumed: Resumed) -> None:
        number = self._streams.number(resumed.stream_id)
        stream = self._streams.get(number)
        if not resumed.live and resumed.last_id < resumed.next_id:
            # It is over, and its end was not kept: nothing will come.
            self._lose(number, ResumeFailure.EXPIRED, resumed.first_available_id, resumed.last_id)
        elif stream is not None and stream.wanted:
            self._events.append(evolve(resumed, stream_id=number))

    def _end(self, number: int, last_id: int | None) -> None:
        self._streams.end(number, last_id)
        cancel = self._backlog.cancel_of(number)
        if cancel is not None:
            self._backlog.drop(cancel)

    def _lose(
        self, number: int, failure: ResumeFailure | None, first_available_id: int = 1, last_id: int = 0
    ) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        self._end(number, None)
        if stream.wanted:
            lost = StreamLost(
                stream_id=number, failure=failure, first_available_id=first_available_id, last_id=last_id
            )
            self._events.append(lost)

"""A client's session without I/O: what outlives connections, and what to do when one is new.

    payload = session.connect()                # the first message of a new WebSocket
    session.receive_data(payload)              # each WebSocket message that comes
    while (event := session.next_event()) is not None: …
    for payload in session.data_to_send(): …   # after every call
    session.connection_lost()                  # however it ended; then connect() again

Rules that it keeps, whatever is cut and however often:

1. Frames of a stream come out as events each once, in order. A frame that came out is never asked for again.
2. A message that was given in is sent until its answer has come, and acts once (`backlog.py`).
3. On a new connection, after a WELCOME that knows the session: one RESUME for each stream that has not
   ended, from the last frame that came out, then unanswered messages. A gap is mended in the same way.
4. If the session is gone, `SessionLost` says so. Its unfinished streams are lost, each with a `StreamLost`;
   unanswered SUBMITs are sent in the new session. No stream is ever left without an end or a `StreamLost`.
5. Stream numbers and submission numbers are the application's: they never mean two things, though a server
   that forgot a session counts anew.

It never waits, knows no clock and opens nothing; when to connect again is the caller's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import evolve

from .backlog import Backlog
from .bookmark import Bookmark
from .codec import make_codec
from .connection import MAX_MESSAGE_BYTES, Connection, ConnectionStatistics
from .errors import DivergedError, LocalProtocolError, MessageTooLargeError, RemoteProtocolError
from .messages import (
    Bye,
    Event,
    Hello,
    ResumeFailure,
    Submit,
    UserEvent,
    Welcome,
)
from .running_digest import RunningDigest
from .session_events import SessionEvent, SessionLost, StreamLost
from .session_inbox import SessionInbox
from .session_outbox import SPEAKING, SessionOutbox
from .session_streams import SessionStreams
from .state import ConnectionState, Role

__all__ = ["ClientSession", "SessionEvent", "SessionLost", "StreamLost"]


class ClientSession:
    """One client's session.

    Args:
        subprotocol: What the handshake of each WebSocket agrees on, one of `codec.SUBPROTOCOLS`.
        hello: Who is speaking; the session and the capabilities in it are filled in.
        max_message_bytes: Longest message to read.
        max_unconfirmed: Most SUBMITs and CANCELs that wait for their answer.
        bookmark: A place to go on from: the session is attached to, and just this stream resumed. Its
            beginning was never seen here, so at its end the digest of the whole text cannot be compared; the
            server vouches for the part before the bookmark when it accepts the digest in RESUME.
        capabilities: What to offer to the server; None for all that the encoding can carry.

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
        capabilities: Sequence[str] | None = None,
    ) -> None:
        self._codec = make_codec(subprotocol)
        self._capabilities = tuple(self._codec.capabilities if capabilities is None else capabilities)
        self._hello = hello
        self._max_message_bytes = max_message_bytes
        self._connection: Connection | None = None
        self._streams = SessionStreams()
        self._backlog = Backlog(max_unconfirmed)
        self._events: deque[SessionEvent] = deque()  # of one WebSocket message, if drained as asked
        self._outbox = SessionOutbox(self._backlog, self._streams, self._events)
        self._inbox = SessionInbox(self._backlog, self._streams, self._outbox, self._events)
        self._closing = False
        if bookmark is not None:
            self._inbox.session_id, self._inbox.resume_token = bookmark.session_id, bookmark.resume_token
            self._streams.begin_from(bookmark)

    # ---- what it is

    @property
    def connected(self) -> bool:
        """Whether WELCOME was received and the connection has not ended."""
        return self._connection is not None and self._connection.state in SPEAKING

    @property
    def session_id(self) -> str | None:
        """The session's name, once there is one."""
        return self._inbox.session_id

    @property
    def welcome(self) -> Welcome | None:
        """The last WELCOME."""
        return self._inbox.welcome

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
        session_id, token = self._inbox.session_id, self._inbox.resume_token
        if session_id is None or not token:
            raise LocalProtocolError("the session cannot be come back to")
        return self._streams.bookmark(
            stream_id,
            session_id,
            token,
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
        hello = evolve(self._hello, capabilities=self._capabilities)
        if self._inbox.session_id is not None and self._inbox.resume_token:
            hello = evolve(hello, session_id=self._inbox.session_id, resume_token=self._inbox.resume_token)
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
                self._inbox.lose(stream.number, None)

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
        except RemoteProtocolError as error:
            self._inbox.drain(connection)
            if isinstance(error, DivergedError):
                self._inbox.lose(self._streams.number(error.stream_id), ResumeFailure.DIVERGED)
            raise
        self._inbox.drain(connection)

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
        self._check_size(evolve(submit, sequence_id=2**53))  # as long as it may ever be
        return self._outbox.add(self._backlog.add(submit))

    def report(self, events: Sequence[UserEvent]) -> int:
        """Takes events, to be sent in one EVENT as soon as there is a connection, until they are safe.

        Returns:
            Their number, which REFUSED will carry as ``sequence_id``. After one that is ``retryable`` the
            events wait for `retry` or the next connection; after another they are gone.

        Raises:
            LocalProtocolError: The protocol does not allow them.
            MessageTooLargeError: They are too long for the server.
            BacklogFullError: Too many messages wait. In each case nothing has changed.
        """
        event = Event(sequence_id=2**53, batch_id=2**53, events=tuple(events))  # as long as it may ever be
        self._check_size(event)
        return self._outbox.add(self._backlog.add(event))

    def keeps(self, number: int) -> bool:
        """Says whether a message still waits for its answer; of events, whether they are not yet safe.

        Args:
            number: What `report` or `submit` returned.
        """
        return self._backlog.keeps(number)

    def retry(self, number: int) -> None:
        """Sends events again that were refused for a while; changes nothing if they are not waiting for it.

        Args:
            number: What `report` returned.
        """
        entry = self._backlog.deferred(number)
        if entry is not None:
            self._outbox.add(entry)

    def _check_size(self, message: Submit | Event) -> None:
        payload = self._codec.encode((message,))
        size = len(payload if isinstance(payload, bytes) else payload.encode())
        limit = MAX_MESSAGE_BYTES if self.welcome is None else self.welcome.limits.max_message_bytes
        if size > limit:
            raise MessageTooLargeError(size, limit)

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
        if bookmark.session_id != self.session_id:
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
        return 0 if self._streams.get(stream_id) is None else self._outbox.cancel(stream_id)

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
        self._outbox.acknowledge(pairs)  # without a connection RESUME will tell it

    def bye(self) -> None:
        """Ends the session's connections for good: BYE is the last that `data_to_send` returns."""
        self._closing = True

    @property
    def has_data_to_send(self) -> bool:
        """Whether anything waits for the next `data_to_send`, BYE aside."""
        return bool(self._outbox)

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

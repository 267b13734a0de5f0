"""The streams of a client's session, as they outlive its connections.

While a connection has a stream, the connection knows how far it got; `detach` takes that over when it is
lost, and `attach` hands it to the next one. An application knows streams by numbers that are never used
again: should the session be lost and another begin, the server counts from 1 again and the application does
not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from attrs import define, field

from .bookmark import Bookmark
from .connection import Connection
from .cursor import ReceiveCursor
from .errors import LocalProtocolError
from .messages import Resume
from .rules import REMEMBERED_STREAMS
from .running_digest import RunningDigest

__all__ = ["LiveStream", "SessionStreams"]


_BEGINNING = ReceiveCursor(0)


@define(eq=False)
class LiveStream:
    """A stream that has not ended.

    Attributes:
        number: The application's.
        idempotency_key: Of its request; empty if another process made it.
        durable: Whether it survives its connection.
        wanted: Whether the application asks for it; if not, it is received only to be ended.
        cursor: How far it was applied, as of the last `SessionStreams.detach`.
        digest: Of the text up to there.
        taken_id: The last frame that the application has taken.
    """

    number: int
    idempotency_key: bytes
    durable: bool
    wanted: bool = True
    cursor: ReceiveCursor = _BEGINNING
    digest: RunningDigest = field(factory=RunningDigest)
    taken_id: int = 0


class SessionStreams:
    """All streams that have not ended, and the last frames of some that have."""

    def __init__(self) -> None:
        self._live: dict[int, LiveStream] = {}
        self._ended: OrderedDict[int, int] = OrderedDict()  # number -> last frame, oldest first
        self._base = 0  # the application's number of a stream is the server's plus this
        self._highest = 0  # number given out

    def __iter__(self) -> Iterator[LiveStream]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def number(self, stream_id: int) -> int:
        """Returns the application's number of a stream."""
        return stream_id + self._base

    def stream_id(self, number: int) -> int | None:
        """Returns the server's number of a stream, or None if it is not of this session."""
        known = number in self._live or self._base < number <= self._highest
        return number - self._base if known else None

    def get(self, number: int) -> LiveStream | None:
        """Returns a stream that has not ended."""
        return self._live.get(number)

    def ended_at(self, number: int) -> int | None:
        """Returns the last frame of a stream that has ended, if that is remembered."""
        return self._ended.get(number)

    def begin(self, stream: LiveStream) -> None:
        """Takes a stream."""
        self._live[stream.number] = stream
        self._ended.pop(stream.number, None)
        self.give_out(stream.number)

    def give_out(self, number: int) -> None:
        """Notes that the server has given out this number, and so all below it."""
        self._highest = max(self._highest, number)

    def begin_from(self, bookmark: Bookmark) -> None:
        """Takes a stream from where a bookmark says. Whether the server ever had it, RESUMED will tell."""
        applied = bookmark.last_processed_id
        digest = RunningDigest.of_unseen(bookmark.digest16) if applied else RunningDigest()
        stream = LiveStream(
            number=self.number(bookmark.stream_id),
            idempotency_key=b"",
            durable=True,
            cursor=ReceiveCursor(0, applied, bookmark.offset),
            digest=digest,
            taken_id=applied,
        )
        self._live[stream.number] = stream
        self._ended.pop(stream.number, None)

    def bookmark(
        self,
        number: int,
        session_id: str,
        resume_token: bytes,
        *,
        last_processed_id: int,
        offset: int,
        digest: RunningDigest,
    ) -> Bookmark:
        """Returns the place up to which a stream was taken; see `ClientSession.bookmark`.

        Raises:
            LocalProtocolError: The stream is none of this session.
        """
        stream_id = self.stream_id(number)
        live = self._live.get(number)
        if stream_id is None or (live is not None and not live.durable):
            raise LocalProtocolError(f"stream {number} is none of this session, or cannot be resumed")
        if last_processed_id and last_processed_id == self.ended_at(number):
            last_processed_id -= 1  # a last frame has no text: offset and digest are those before it
        return Bookmark(
            session_id=session_id,
            resume_token=resume_token,
            stream_id=stream_id,
            last_processed_id=last_processed_id,
            offset=offset,
            digest16=digest.prefix,
        )

    def end(self, number: int, last_id: int | None = None) -> None:
        """Forgets a stream that has ended or cannot go on, but for its last frame."""
        self._live.pop(number, None)
        if last_id is not None:
            self._ended[number] = last_id
            if len(self._ended) > REMEMBERED_STREAMS:
                self._ended.popitem(last=False)

    def position(self, number: int, connection: Connection | None) -> tuple[ReceiveCursor, RunningDigest]:
        """Returns how far a stream that has not ended came."""
        stream = self._live[number]
        here = None if connection is None else connection.position(number - self._base)
        return here or (stream.cursor, stream.digest)

    def take(self, number: int, frame_id: int) -> None:
        """Notes what the application has taken of a stream, if it has not ended."""
        if (stream := self._live.get(number)) is not None:
            stream.taken_id = max(stream.taken_id, frame_id)

    def detach(self, connection: Connection) -> None:
        """Takes over from a connection how far each stream came."""
        for stream in self._live.values():
            stream.cursor, stream.digest = self.position(stream.number, connection)

    def attach(self, number: int, connection: Connection) -> None:
        """Tells a connection how far a stream came elsewhere."""
        stream = self._live[number]
        connection.know_position(number - self._base, stream.cursor, stream.digest)

    def announce(self, connection: Connection) -> None:
        """Tells a connection which streams the session has given out."""
        connection.know_streams(self._highest - self._base)

    def resume(self, number: int, connection: Connection) -> Resume:
        """Returns the RESUME that asks for the rest of a stream."""
        cursor, digest = self.position(number, connection)
        taken_id = self._live[number].taken_id
        return Resume(
            stream_id=number - self._base,
            last_processed_id=cursor.applied,
            digest=digest.prefix if cursor.applied else None,
            taken_id=taken_id if taken_id < cursor.applied else None,
        )

    def lose_all(self) -> list[LiveStream]:
        """Forgets every stream, for another session; returns those that had not ended."""
        lost = list(self._live.values())
        self._live.clear()
        self._ended.clear()
        # One from a bookmark has its number, though the server never gave it out here.
        self._base = self._highest = max([self._highest, *(stream.number for stream in lost)])
        return lost

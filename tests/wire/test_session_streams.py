"""Streams that outlive connections."""

import pytest

from seedance_wire.bookmark import Bookmark
from seedance_wire.connection import Connection
from seedance_wire.cursor import ReceiveCursor
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import Resume
from seedance_wire.rules import REMEMBERED_STREAMS
from seedance_wire.running_digest import RunningDigest
from seedance_wire.session_streams import LiveStream, SessionStreams
from seedance_wire.state import Role

BOOKMARK = Bookmark(
    session_id="s", resume_token=b"t", stream_id=3, last_processed_id=4, offset=9, digest16=b"d" * 16
)


def live(number: int, *, durable: bool = True) -> LiveStream:
    """A stream without frames."""
    return LiveStream(number=number, idempotency_key=b"k" * 16, durable=durable)


def test_numbers_are_never_used_again() -> None:
    """Behind a lost session the server counts from 1, the application goes on."""
    streams = SessionStreams()
    streams.begin(live(1))
    streams.begin(live(2))
    streams.end(1, 7)
    assert (streams.ended_at(1), streams.stream_id(1), streams.stream_id(3)) == (7, 1, None)
    assert [stream.number for stream in streams.lose_all()] == [2]
    assert (len(streams), streams.number(1), streams.stream_id(2), streams.ended_at(1)) == (0, 3, None, None)
    streams.begin(live(3))
    assert streams.stream_id(3) == 1


def test_stream_from_a_bookmark_is_resumed_from_there() -> None:
    """Whether the server has it is not known before it says so."""
    streams = SessionStreams()
    streams.begin_from(BOOKMARK)
    connection = Connection(Role.CLIENT, "seedance.v1")
    streams.attach(3, connection)
    assert streams.resume(3, connection) == Resume(stream_id=3, last_processed_id=4, digest=b"d" * 16)
    assert streams.stream_id(2) is None
    streams.give_out(3)
    assert streams.stream_id(2) == 2


def test_stream_that_has_nothing_yet_shows_no_digest() -> None:
    """There is nothing to prove."""
    streams = SessionStreams()
    streams.begin(live(1))
    connection = Connection(Role.CLIENT, "seedance.v1")
    assert streams.resume(1, connection) == Resume(stream_id=1, last_processed_id=0)


def test_number_of_a_stream_from_a_bookmark_is_not_used_again() -> None:
    """Its session may be lost before the server has said a word of it."""
    streams = SessionStreams()
    streams.begin_from(BOOKMARK)
    assert [stream.number for stream in streams.lose_all()] == [3]
    assert (streams.number(1), streams.stream_id(3)) == (4, None)


@pytest.mark.parametrize(("taken_id", "said"), [(0, 0), (2, 2), (3, None), (4, None)])
def test_resume_tells_what_waits_for_the_application(taken_id: int, said: int | None) -> None:
    """What it has not taken still fills the window; where nothing waits there is nothing to say."""
    streams = SessionStreams()
    streams.begin(live(1))
    connection = Connection(Role.CLIENT, "seedance.v1")
    streams.get(1).cursor = ReceiveCursor(1, 3, 9)
    streams.take(1, taken_id)
    streams.take(1, 0)
    streams.take(2, 9)
    assert streams.resume(1, connection).taken_id == said


def test_ends_are_remembered_for_a_while() -> None:
    """Bounded, oldest first."""
    streams = SessionStreams()
    for number in range(1, REMEMBERED_STREAMS + 2):
        streams.begin(live(number))
        streams.end(number, 5)
    assert (streams.ended_at(1), streams.ended_at(2), len(list(streams))) == (None, 5, 0)


def test_bookmark_is_of_a_stream_that_can_be_resumed() -> None:
    """Not of one that dies with its connection, nor of another session's; behind an end it is before it."""
    streams = SessionStreams()
    streams.begin(live(1, durable=False))
    streams.begin(live(2))

    def bookmark(number: int, last: int) -> Bookmark:
        return streams.bookmark(
            number, "s", b"t", last_processed_id=last, offset=9, digest=RunningDigest.of_unseen(b"d" * 16)
        )

    for number in (1, 3):
        with pytest.raises(LocalProtocolError):
            bookmark(number, 1)
    assert bookmark(2, 5).last_processed_id == 5
    streams.end(2, 5)
    assert (bookmark(2, 5).last_processed_id, bookmark(2, 4).last_processed_id) == (4, 4)

"""A client's session, case by case. Random histories are in tests/stateful."""

from __future__ import annotations

import hashlib

import pytest
from attrs import evolve

from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import ClientSession, SessionLost, StreamLost
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.errors import (
    BacklogFullError,
    DivergedError,
    LocalProtocolError,
    MessageTooLargeError,
    RemoteProtocolError,
)
from seedance_wire.messages import (
    Accepted,
    Cancel,
    Delta,
    Durability,
    Flush,
    GoAway,
    Hello,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    Submit,
    Welcome,
)
from seedance_wire.running_digest import RunningDigest
from seedance_wire.stored_form import load_frame
from tests.model_server import LIMITS
from tests.wire_line import Line, submit, texts_of

subprotocols = pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)


@subprotocols
def test_session_goes_on_exactly_where_it_was_cut(subprotocol: str) -> None:
    """Nothing again, nothing missing, whatever the server made meanwhile; the end has the right digest."""
    line = Line(subprotocol)
    line.connect()
    stream = line.begin(Durability.COMMITTED, "של", "ום")
    stream.generate("lost on the way")
    line.server.send_frames(stream)
    assert line.cut() == []
    stream.generate(" עולם")
    stream.finish()
    events = line.connect()
    assert [type(event) for event in events] == [Welcome, Resumed, Delta, Delta, Flush]
    assert texts_of(events) == ["lost on the way", " עולם"]
    digest = hashlib.sha256("שלום".encode()).digest()[:16]
    assert Resume(stream_id=1, last_processed_id=2, digest=digest, taken_id=0) in line.said
    assert line.session.open_streams == 0


def test_session_replays_12871_to_12874_after_12870() -> None:
    """The worked example: the client has 12870, the server 12874, four frames are sent and come out."""
    line = Line()
    line.connect()
    stream = line.begin()
    for index in range(12_870):
        stream.generate(str(index % 10))
    first = [event for _ in range(4) for event in line.flow()]
    assert [event.id for event in first if isinstance(event, Delta)] == list(range(1, 12_871))
    line.cut()
    for text in "abcd":
        stream.generate(text)
    sent_before = line.said[:]
    events = line.connect()
    assert [(event.id, event.text) for event in events if isinstance(event, Delta)] == list(
        zip(range(12_871, 12_875), "abcd", strict=True)
    )
    (resume,) = [message for message in line.said[len(sent_before) :] if isinstance(message, Resume)]
    assert resume.last_processed_id == 12_870


def test_session_submits_again_what_was_not_answered_under_the_same_number_and_key() -> None:
    """The server had stored it and its answer was lost: one generation, whole from its first frame."""
    line = Line()
    line.connect()
    number = line.session.submit(submit(1))
    line.flow(answer=False)
    stream = line.server.answer(line.server.waiting[0])
    stream.generate("a")
    line.cut()
    events = line.connect()
    (accepted,) = [event for event in events if isinstance(event, Accepted)]
    assert (accepted.sequence_id, accepted.replayed) == (number, True)
    assert texts_of(events) == ["a"]
    submits = [message for message in line.said if isinstance(message, Submit)]
    assert [message.sequence_id for message in submits] == [1, 1]
    assert set(line.server.generations.values()) == {1}


def test_session_numbers_anew_what_the_server_does_not_have() -> None:
    """What was answered is not sent again, and its number would be missing."""
    line = Line()
    line.connect()
    first, second = line.session.submit(submit(1)), line.session.submit(submit(2))
    line.flow(answer=False)
    line.server.answer(line.server.waiting[1])
    (accepted,) = line.arrive()
    assert isinstance(accepted, Accepted)
    assert accepted.sequence_id == second
    line.cut()
    line.session.submit(submit(3))
    events = line.connect()
    assert [e.sequence_id for e in events if isinstance(e, Accepted)] == [first, 3]
    submits = [message for message in line.said if isinstance(message, Submit)]
    assert [(m.sequence_id, m.idempotency_key[0]) for m in submits] == [(1, 1), (2, 2), (1, 1), (2, 3)]


def test_session_cancels_until_the_stream_has_ended() -> None:
    """A CANCEL that was cut off comes again, one that is under way is not doubled, and then it is quiet."""
    line = Line()
    line.connect()
    line.begin(Durability.COMMITTED, "a")
    number = line.session.cancel(1)
    assert line.session.cancel(1) == number
    line.session.data_to_send()  # and lost
    line.cut()
    events = line.connect()
    assert isinstance(events[-1], Flush)
    assert sum(isinstance(message, Cancel) for message in line.said) == 1
    assert (line.session.cancel(1), line.session.cancel(9), line.session.unanswered) == (0, 0, 0)


def test_session_that_is_gone_loses_its_streams_and_keeps_its_requests() -> None:
    """Each loss is told; numbers of the application never mean two things."""
    line = Line()
    line.connect()
    line.begin(Durability.COMMITTED, "a")
    old = line.session.session_id
    waiting = line.session.submit(submit(100))
    going_on = line.session.submit(submit(101, continues=1))
    line.session.cancel(1)
    line.server.forget_sessions()
    line.cut()
    events = line.connect()
    assert [type(event) for event in events[:3]] == [Welcome, SessionLost, StreamLost]
    assert events[1:3] == [
        SessionLost(session_id=old or ""),
        StreamLost(stream_id=1, failure=ResumeFailure.NOT_FOUND),
    ]
    assert StreamLost(sequence_id=going_on, failure=ResumeFailure.NOT_FOUND) in events
    (accepted,) = [event for event in events if isinstance(event, Accepted)]
    assert (accepted.sequence_id, accepted.stream_id) == (waiting, 2)
    line.streams()[0].generate("b")
    (delta,) = line.flow()
    assert isinstance(delta, Delta)
    assert (delta.stream_id, delta.id, delta.text) == (2, 1, "b")
    line.session.acknowledge([(1, 1), (2, 1)])
    line.flow()
    assert line.server.acked == {1: 1}


def test_stream_that_is_not_durable_is_lost_with_its_connection() -> None:
    """At once, not when somebody asks; others wait."""
    line = Line()
    line.connect()
    line.begin(Durability.NONE, "a")
    line.begin(Durability.COMMITTED, "b")
    with pytest.raises(LocalProtocolError):
        line.session.bookmark(1, last_processed_id=1, offset=1, digest=RunningDigest())
    assert line.cut() == [StreamLost(stream_id=1, failure=None)]
    assert line.session.open_streams == 1


def test_session_mends_a_gap_by_resuming_on_the_same_connection() -> None:
    """The frame that does not fit is dropped, and so is all that crosses; nothing comes out twice."""
    line = Line()
    line.connect()
    stream = line.begin(Durability.COMMITTED, "של")
    for text in ("ום", " ", "עולם"):
        stream.generate(text)
    codec = make_codec("seedance.v1")
    for frame_id in (3, 4):
        line.session.receive_data(codec.encode((load_frame(stream.frames[frame_id - 1], epoch=1),)))
    assert line.events() == []
    assert texts_of(line.flow()) == ["ום", " ", "עולם"]
    assert sum(isinstance(message, Resume) for message in line.said) == 1


def test_session_gives_a_stream_up_that_the_server_rejects() -> None:
    """With the reason, and what there would be."""
    line = Line()
    line.connect()
    stream = line.begin(Durability.COMMITTED, "a", "b")
    line.cut()
    stream.generate("c")
    stream.generate("d")
    stream.first_available_id = 4
    lost = StreamLost(stream_id=1, failure=ResumeFailure.TRUNCATED, first_available_id=4, last_id=4)
    assert line.connect()[-1] == lost
    assert line.cut() == []
    assert not any(isinstance(event, StreamLost) for event in line.connect())


def test_bookmark_goes_on_in_another_process() -> None:
    """From the place up to which the text was taken, with the digest as proof; then its own bookmarks."""
    line = Line()
    line.connect()
    stream = line.begin(Durability.COMMITTED, "של", "ום")
    digest = RunningDigest()
    digest.update("של".encode())
    bookmark = line.session.bookmark(1, last_processed_id=1, offset=4, digest=digest)
    other = Line(bookmark=Bookmark.from_str(bookmark.to_str()))
    other.server = line.server
    stream.finish()
    events = other.connect()
    assert texts_of(events) == ["ום"]
    assert isinstance(events[-1], Flush)
    assert other.session.session_id == line.session.session_id
    number = other.session.submit(submit(200))
    assert [e.sequence_id for e in other.flow() if isinstance(e, Accepted)] == [number]
    again = other.session.bookmark(1, last_processed_id=3, offset=8, digest=RunningDigest.of_unseen(None))
    assert (again.last_processed_id, again.digest16) == (2, None)  # before the end, which it will learn again
    assert other.session.resume(again) == 1
    assert [type(event) for event in other.flow()] == [Resumed, Flush]


def test_bookmark_of_another_text_is_rejected() -> None:
    """The server compares the digest before it sends anything."""
    line = Line()
    line.connect()
    line.begin(Durability.COMMITTED, "a", "b")
    bookmark = line.session.bookmark(
        1, last_processed_id=1, offset=1, digest=RunningDigest.of_unseen(b"x" * 16)
    )
    other = Line(bookmark=bookmark)
    other.server = line.server
    assert other.connect()[-1] == StreamLost(stream_id=1, failure=ResumeFailure.DIVERGED, last_id=2)
    with pytest.raises(LocalProtocolError, match="another session"):
        other.session.resume(evolve(bookmark, session_id="s-9"))


def test_session_that_diverged_loses_the_stream_and_closes_the_connection() -> None:
    """A digest that does not match is never explained away."""
    line = Line()
    line.connect()
    stream = line.begin(Durability.COMMITTED, "a")
    stream.text = "b"
    stream.finish()
    with pytest.raises(DivergedError):
        line.flow()
    assert line.events() == [StreamLost(stream_id=1, failure=ResumeFailure.DIVERGED)]
    line.cut()
    assert [type(event) for event in line.connect()] == [Welcome]


def test_session_keeps_a_request_while_the_server_drains() -> None:
    """It goes to the next connection; streams and cancels go on on this one."""
    line = Line()
    line.connect()
    line.begin(Durability.COMMITTED, "a")
    line.server.go_away()
    assert [type(event) for event in line.flow()] == [GoAway]
    number = line.session.submit(submit(100))
    line.session.cancel(1)
    assert [type(event) for event in line.flow()] == [Flush]
    line.cut()
    assert [e.sequence_id for e in line.connect() if isinstance(e, Accepted)] == [number]


def test_withdrawn_request_is_cancelled_and_says_nothing() -> None:
    """Unsent it is never sent; sent, its stream is ended and nobody hears of it."""
    line = Line(max_unconfirmed=1)
    line.session.withdraw(line.session.submit(submit(1)))
    assert line.session.unanswered == 0
    line.connect()
    number = line.session.submit(submit(2))
    line.flow(answer=False)
    line.session.withdraw(number)
    assert line.flow() == []
    assert (line.streams()[0].cancels, line.session.open_streams, line.session.unanswered) == (1, 0, 0)
    assert line.server.acked == {1: 1}  # or its window would fill, and its end not come
    line.session.submit(submit(3))
    with pytest.raises(BacklogFullError):
        line.session.submit(submit(4))


def test_session_refuses_what_it_cannot_keep() -> None:
    """Before anything is sent: too long, not allowed, a key in use, an acknowledgement of nothing."""
    line = Line()
    with pytest.raises(MessageTooLargeError):
        line.session.submit(evolve(submit(1), prompt="p" * 300_000))
    with pytest.raises(LocalProtocolError):
        line.session.submit(evolve(submit(1), prompt="\ud800"))
    line.session.submit(submit(1))
    with pytest.raises(LocalProtocolError, match="has not ended"):
        line.session.submit(submit(1))
    line.connect()
    with pytest.raises(LocalProtocolError, match="has not ended"):
        line.session.submit(submit(1))
    with pytest.raises(LocalProtocolError, match="whose last was 0"):
        line.session.acknowledge([(1, 1)])


def test_session_refuses_a_request_that_the_next_server_would_not_read() -> None:
    """Its limit is only known after WELCOME; the application is told as if the server had refused."""
    line = Line()
    number = line.session.submit(evolve(submit(1), prompt="p" * 5000))
    line.session.connect()
    welcome = Welcome(
        session_id="s", epoch=1, last_sequence_id=0, model="m", limits=evolve(LIMITS, max_message_bytes=99)
    )
    line.session.receive_data(make_codec("seedance.v1").encode((welcome,)))
    assert line.session.data_to_send() == []
    refused = line.events()[-1]
    assert isinstance(refused, Refused)
    assert refused.sequence_id == number


def test_session_does_not_follow_a_server_into_a_former_epoch() -> None:
    """An owner that was fenced off must not be believed."""
    line = Line()
    line.connect()
    line.cut()
    line.connect()
    line.cut()
    line.server.sessions["s-1"].epoch = 0
    with pytest.raises(RemoteProtocolError, match="epoch 1 after 2"):
        line.connect()


def test_session_says_bye_last_and_never_connects_again() -> None:
    """What is due goes first."""
    line = Line()
    line.connect()
    line.session.submit(submit(1))
    line.session.bye()
    assert len(line.session.data_to_send()) == 2
    assert line.session.data_to_send() == []
    with pytest.raises(LocalProtocolError):
        line.session.connect()
    with pytest.raises(LocalProtocolError):
        ClientSession("seedance.v1", hello=Hello()).receive_data(b"")

"""What a server's messages mean to a session, where the session's own tests do not come by."""

from collections import deque

import pytest
from attrs import evolve

from seedance_wire.backlog import Backlog
from seedance_wire.codec import make_codec
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    AckLevel,
    Checkpoint,
    Flow,
    FlowAction,
    Hello,
    Limits,
    Message,
    Phase,
    Resume,
    Resumed,
    ResumeFailure,
    Status,
    StreamCheckpoint,
    Submit,
    Welcome,
)
from seedance_wire.session_events import SessionEvent, StreamLost
from seedance_wire.session_inbox import SessionInbox
from seedance_wire.session_outbox import SessionOutbox
from seedance_wire.session_streams import LiveStream, SessionStreams
from seedance_wire.state import Role

CODEC = make_codec("seedance.v1")
LIMITS = Limits(max_message_bytes=262_144, max_streams=9, max_context_tokens=9)
WELCOME = Welcome(session_id="s", epoch=1, last_sequence_id=0, model="m", limits=LIMITS, resume_token=b"t")


class Office:
    """An inbox with everything that it needs."""

    def __init__(self) -> None:
        self.events: deque[SessionEvent] = deque()
        self.backlog, self.streams = Backlog(8), SessionStreams()
        self.outbox = SessionOutbox(self.backlog, self.streams, self.events)
        self.inbox = SessionInbox(self.backlog, self.streams, self.outbox, self.events)
        self.connection = Connection(Role.CLIENT, "seedance.v1")
        self.connection.send(Hello())
        assert self.hear(WELCOME) == [WELCOME]

    def hear(self, message: Message) -> list[SessionEvent]:
        """Takes a message, returns the events."""
        self.connection.receive_data(CODEC.encode((message,)))
        self.inbox.drain(self.connection)
        events = list(self.events)
        self.events.clear()
        return events


def test_inbox_remembers_the_session() -> None:
    """For the next HELLO."""
    inbox = Office().inbox
    assert (inbox.session_id, inbox.resume_token, inbox.welcome) == ("s", b"t", WELCOME)


def test_checkpoint_is_told_in_the_numbers_of_the_application() -> None:
    """Streams behind a lost session too."""
    office = Office()
    office.streams.give_out(4)
    office.streams.lose_all()
    request = Submit(sequence_id=0, idempotency_key=b"k" * 16, prompt="p")
    office.outbox.add(office.backlog.add(request))
    office.outbox.payloads(office.connection)
    entry = StreamCheckpoint(stream_id=1, frame_id=2, digest=b"d" * 16)
    said = Checkpoint(sequence_id=1, timestamp_ms=5, ack_level=AckLevel.COMMITTED, streams=(entry,))
    (told,) = office.hear(said)
    assert isinstance(told, Checkpoint)
    assert (told.sequence_id, told.streams[0].stream_id, told.timestamp_ms) == (1, 5, 5)


@pytest.mark.parametrize("wanted", [True, False])
def test_news_of_a_stream_is_told_in_its_number_if_anybody_asks_for_it(wanted: bool) -> None:
    """FLOW and STATUS are about a stream that the application knows, or nothing."""
    office = Office()
    office.streams.give_out(4)
    office.streams.lose_all()
    office.streams.begin(LiveStream(number=5, idempotency_key=b"", durable=True, wanted=wanted))
    office.connection.send(Resume(stream_id=1, last_processed_id=0))
    flow = Flow(stream_id=1, action=FlowAction.PAUSE, window=16)
    status = Status(stream_id=1, phase=Phase.QUEUED, position=2)
    told = [evolve(flow, stream_id=5), evolve(status, stream_id=5)]
    assert office.hear(flow) + office.hear(status) == (told if wanted else [])


def test_stream_that_is_over_without_its_end_is_lost() -> None:
    """Nothing will come, so nobody waits for it."""
    office = Office()
    office.streams.begin(LiveStream(number=1, idempotency_key=b"", durable=True))
    office.connection.send(Resume(stream_id=1, last_processed_id=0))
    resumed = Resumed(stream_id=1, next_id=1, epoch=1, first_available_id=1, last_id=0, live=False)
    assert office.hear(resumed) == [StreamLost(stream_id=1, failure=ResumeFailure.EXPIRED)]
    assert len(office.streams) == 0


def test_unwanted_stream_is_lost_in_silence() -> None:
    """Nobody asked for it any more."""
    office = Office()
    office.streams.begin(LiveStream(number=1, idempotency_key=b"", durable=True, wanted=False))
    office.inbox.lose(1, ResumeFailure.EXPIRED)
    office.inbox.lose(2, ResumeFailure.EXPIRED)
    assert not office.events
    assert len(office.streams) == 0

"""What a session has yet to say."""

from collections import deque

import pytest

from seedance_wire.backlog import Backlog
from seedance_wire.codec import make_codec
from seedance_wire.connection import Connection
from seedance_wire.envelope import MAX_ACK_ENTRIES
from seedance_wire.errors import MessageTooLargeError
from seedance_wire.messages import (
    Ack,
    Cancel,
    Event,
    Hello,
    Limits,
    Refused,
    Resume,
    Submit,
    UserEvent,
    Welcome,
)
from seedance_wire.session_events import SessionEvent
from seedance_wire.session_outbox import SessionOutbox
from seedance_wire.session_streams import LiveStream, SessionStreams
from seedance_wire.state import Role
from tests.wire_line import Line

CODEC = make_codec("seedance.v1")
LIMITS = Limits(max_message_bytes=262_144, max_streams=9, max_context_tokens=9)


class Office:
    """An outbox with everything that it needs, on an open connection of a session with many streams."""

    def __init__(self) -> None:
        self.events: deque[SessionEvent] = deque()
        self.backlog, self.streams = Backlog(8), SessionStreams()
        self.outbox = SessionOutbox(self.backlog, self.streams, self.events)
        self.connection = Connection(Role.CLIENT, "seedance.v1")
        self.connection.send(Hello(session_id="s", resume_token=b"t"))
        welcome = Welcome(
            session_id="s", epoch=1, last_sequence_id=6, model="m", limits=LIMITS, session_present=True
        )
        self.connection.receive_data(CODEC.encode((welcome,)))
        self.streams.give_out(2000)
        self.streams.announce(self.connection)

    def said(self) -> list[object]:
        """What goes out now."""
        return [CODEC.decode_client(payload)[0] for payload in self.outbox.payloads(self.connection)]


def test_outbox_says_things_once_in_order_and_acknowledges_last() -> None:
    """Acknowledgements of a stream are one, the highest."""
    office = Office()
    office.streams.begin(LiveStream(number=3, idempotency_key=b"", durable=True))
    office.outbox.acknowledge([(1, 5), (2, 7), (1, 9), (1, 8), (9999, 1)])
    office.outbox.resume(3)
    request = Submit(sequence_id=0, idempotency_key=b"k" * 16, prompt="p")
    number = office.outbox.add(office.backlog.add(request))
    assert office.outbox.cancel(3) == office.outbox.cancel(3) == number + 1
    resume, submit, cancel, ack = office.said()
    assert resume == Resume(stream_id=3, last_processed_id=0)
    assert isinstance(submit, Submit)
    assert submit.sequence_id == 7
    assert cancel == Cancel(sequence_id=8, stream_id=3)
    assert ack == Ack(processed=((1, 9), (2, 7)))
    assert office.said() == []


def test_outbox_splits_acknowledgements_that_no_message_could_hold() -> None:
    """Each has as many entries as one may have."""
    office = Office()
    office.outbox.acknowledge((number, 1) for number in range(1, MAX_ACK_ENTRIES + 2))
    sizes = [len(message.processed) for message in office.said() if isinstance(message, Ack)]
    assert sizes == [MAX_ACK_ENTRIES, 1]


def test_outbox_forgets_what_is_not_wanted_any_more() -> None:
    """A stream that ended meanwhile, a message that was dropped, and all of it with the connection."""
    office = Office()
    office.outbox.resume(3)
    entry = office.backlog.add(Cancel(sequence_id=1, stream_id=1))
    office.outbox.add(entry)
    office.backlog.drop(entry)
    assert office.said() == []
    office.outbox.acknowledge([(1, 1)])
    office.outbox.begin([])
    assert office.said() == []


CLICKS = [UserEvent(timestamp=number, user_id=1, action="click") for number in range(3)]


@pytest.mark.parametrize("checkpoint", ["heard", "lost"])
def test_events_are_sent_until_a_checkpoint_covers_them_and_count_once(checkpoint: str) -> None:
    """WELCOME doesn't confirm: what the server has counted it may have refused, and the answer was lost."""
    line = Line()
    line.connect()
    number = line.session.report(CLICKS[:2])
    line.flow()
    line.server.checkpoint()
    if checkpoint == "heard":
        line.arrive()
    assert line.session.unanswered == line.session.keeps(number) == (checkpoint == "lost")
    line.cut()
    line.connect()
    sent = [(m.sequence_id, m.batch_id) for m in line.said if isinstance(m, Event)]
    assert sent == ([(1, number)] if checkpoint == "heard" else [(1, number), (2, number)])
    line.server.checkpoint()
    line.arrive()
    assert line.session.unanswered == 0
    assert line.server.session is not None
    assert line.server.session.batches == {number: tuple(CLICKS[:2])}


def test_events_that_were_refused_for_a_while_are_kept_until_they_are_retried() -> None:
    """Neither lost nor sent before it is time; a number that isn't waiting is nothing to retry."""
    line = Line()
    line.connect()
    line.server.takes_events = False
    number = line.session.report(CLICKS)
    (refused,) = line.flow()
    assert isinstance(refused, Refused)
    assert refused.sequence_id == number
    line.server.checkpoint()
    line.arrive()
    assert (line.flow(), line.session.unanswered) == ([], 1)
    line.server.takes_events = True
    for _ in range(2):
        line.session.retry(number)
    line.flow()
    line.session.retry(number)
    line.flow()
    assert [m.sequence_id for m in line.said if isinstance(m, Event)] == [1, 2]
    assert line.server.session is not None
    assert line.server.session.batches == {number: tuple(CLICKS)}


def test_refusal_that_was_lost_loses_no_events() -> None:
    """The next connection brings them again, under a new number."""
    line = Line()
    line.connect()
    line.server.takes_events = False
    number = line.session.report(CLICKS)
    for payload in line.session.data_to_send():
        line.hear(payload)
    line.cut()
    line.server.takes_events = True
    line.connect()
    assert line.server.session is not None
    assert line.server.session.batches == {number: tuple(CLICKS)}


def test_events_go_into_the_next_session_when_theirs_is_lost() -> None:
    """Whether the one that is gone had counted them, nobody knows any more."""
    line = Line()
    line.connect()
    number = line.session.report(CLICKS)
    line.server.forget_sessions()
    line.session.connection_lost()
    line.connect()
    assert line.server.session is not None
    assert line.server.session.batches == {number: tuple(CLICKS)}


def test_events_too_long_for_the_server_are_not_taken() -> None:
    """Nothing has changed then."""
    line = Line()
    line.connect()
    large = [UserEvent(timestamp=1, user_id=1, action="a", payload=bytes(65_536))] * 5
    with pytest.raises(MessageTooLargeError):
        line.session.report(large)
    assert line.session.unanswered == 0

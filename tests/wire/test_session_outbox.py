"""What a session has yet to say."""

from collections import deque

from seedance_wire.backlog import Backlog
from seedance_wire.codec import make_codec
from seedance_wire.connection import Connection
from seedance_wire.envelope import MAX_ACK_ENTRIES
from seedance_wire.messages import Ack, Cancel, Hello, Limits, Resume, Submit, Welcome
from seedance_wire.session_events import SessionEvent
from seedance_wire.session_outbox import SessionOutbox
from seedance_wire.session_streams import LiveStream, SessionStreams
from seedance_wire.state import Role

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

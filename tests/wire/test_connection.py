"""One end of a connection."""

from __future__ import annotations

import hashlib

import pytest
from attrs import evolve

from seedance_wire.capabilities import PIECES, ZSTD
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.connection import MAX_MESSAGE_BYTES, Connection, InvalidSubmit
from seedance_wire.envelope import CodedDelta, Gap, Pieces
from seedance_wire.errors import (
    CloseCode,
    DecodeError,
    LocalProtocolError,
    MessageTooLargeError,
    RemoteProtocolError,
)
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Delta,
    Durability,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    GoAway,
    Hello,
    Limits,
    Message,
    Refused,
    Resume,
    Resumed,
    StageTiming,
    Submit,
    Usage,
    Welcome,
)
from seedance_wire.state import ConnectionState, Role

subprotocols = pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
ways = pytest.mark.parametrize(
    ("subprotocol", "capabilities"),
    [
        *((name, ()) for name in SUBPROTOCOLS),
        ("seedance.v1", (PIECES,)),
        ("seedance.v1", (PIECES, ZSTD)),
        ("seedance.v1", (ZSTD,)),
    ],
)
"""In which a connection can travel; all tell the same story."""
KEY = b"k" * 16
WELCOME = Welcome(
    session_id="s",
    epoch=1,
    last_sequence_id=0,
    model="m",
    limits=Limits(max_message_bytes=1000, max_streams=64, max_context_tokens=9),
)


def drained(connection: Connection) -> list[Message | InvalidSubmit]:
    """All events that are waiting."""
    events = []
    while (event := connection.next_event()) is not None:
        events.append(event)
    return events


class Pair:
    """A client and a server with nothing between them."""

    def __init__(
        self,
        subprotocol: str = "seedance.v1",
        *,
        streams: int = 0,
        capabilities: tuple[str, ...] = (),
        durability: Durability = Durability.NONE,
    ) -> None:
        self.client = Connection(Role.CLIENT, subprotocol, trial_messages=0)
        self.server = Connection(Role.SERVER, subprotocol, max_message_bytes=1000, trial_messages=0)
        self.say(Hello(capabilities=capabilities))
        self.tell(evolve(WELCOME, capabilities=capabilities))
        for number in range(1, streams + 1):
            self.say(Submit(sequence_id=number, idempotency_key=KEY, prompt="p"))
            self.tell(Accepted(sequence_id=number, stream_id=number, durability=durability))

    def say(self, *messages: Message) -> bytes | str:
        """Sends from the client and checks that the server sees exactly that."""
        payload = self.client.send(*messages)
        self.server.receive_data(payload)
        assert drained(self.server) == list(messages)
        return payload

    def tell(self, *messages: Message) -> bytes | str:
        """Sends from the server and checks that the client sees exactly that."""
        payload = self.server.send(*messages)
        self.client.receive_data(payload)
        assert drained(self.client) == list(messages)
        return payload


def delta(id_: int, offset: int, text: str, stream_id: int = 1) -> Delta:
    """A DELTA in the only epoch."""
    return Delta(stream_id=stream_id, id=id_, epoch=1, offset=offset, text=text)


def final(id_: int, offset: int, text: str, stream_id: int = 1) -> Flush:
    """The end of a stream whose whole text is given."""
    end = Final(
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        timing=StageTiming(),
        digest=hashlib.sha256(text.encode()).digest(),
    )
    return Flush(stream_id=stream_id, id=id_, epoch=1, offset=offset, final=end)


@ways
def test_connection_carries_a_stream_from_hello_to_bye(
    subprotocol: str, capabilities: tuple[str, ...]
) -> None:
    """The whole life of a connection with one stream, the same in every encoding."""
    pair = Pair(subprotocol, streams=1, capabilities=capabilities)
    pair.tell(delta(1, 0, "שלום"))
    pair.tell(delta(2, 8, " עולם"), Flush(stream_id=1, id=3, epoch=1, offset=17), delta(4, 17, "\r\n é"))
    pair.say(Ack(processed=((1, 4),)))
    pair.say(Cancel(sequence_id=2, stream_id=1))
    pair.tell(final(5, 22, "שלום עולם\r\n é"))
    pair.say(Ack(processed=((1, 5),)))
    pair.tell(GoAway(reason="done"))
    assert pair.client.state is pair.server.state is ConnectionState.DRAINING
    pair.say(Bye())
    assert pair.client.state is pair.server.state is ConnectionState.CLOSED
    sent, received = pair.server.statistics(), pair.client.statistics()
    assert (sent.frames_sent, received.frames_received) == (5, 5)
    assert sent.bytes_sent == received.bytes_received
    assert sent.messages_received == received.messages_sent
    assert sent.plain_bytes_sent == received.plain_bytes_received
    assert (sent.bytes_sent == sent.plain_bytes_sent) == (ZSTD not in capabilities)
    assert (received.open_streams, received.pending_submits, received.duplicates_dropped) == (0, 0, 0)


def test_connection_sends_differences_only_where_they_are_shorter() -> None:
    """Hebrew after Hebrew shrinks, ASCII and the first piece travel whole, and so does what would grow."""
    pair = Pair(streams=1)
    codec = make_codec("seedance.v1")
    kinds = []
    offset = 0
    for id_, text in enumerate(["של", "ום", "ab", "é", "של", "😀😀", ""], start=1):
        (frame,) = codec.decode_server(pair.tell(delta(id_, offset, text)))
        kinds.append(type(frame))
        offset += len(text.encode())
    assert kinds == [Delta, CodedDelta, Delta, Delta, CodedDelta, CodedDelta, Delta]
    assert pair.server.statistics().differences_sent == 3


def test_connection_clears_the_context_on_flush() -> None:
    """After a flush the next text travels whole, in the same envelope or a later one."""
    pair = Pair(streams=1)
    pair.tell(delta(1, 0, "של"))
    flush = Flush(stream_id=1, id=2, epoch=1, offset=4)
    pair.tell(flush, delta(3, 4, "של"), delta(4, 8, "ום"))
    pair.tell(Flush(stream_id=1, id=5, epoch=1, offset=12))
    pair.tell(delta(6, 12, "של"))
    assert pair.server.statistics().differences_sent == 1


def test_connection_keeps_a_context_for_each_stream() -> None:
    """Frames of several streams in one envelope do not disturb each other's differences."""
    pair = Pair(streams=2)
    pair.tell(delta(1, 0, "של"), delta(1, 0, "你好", 2), delta(2, 4, "ום", 1), delta(2, 6, "世界", 2))
    assert pair.server.statistics().differences_sent > 0


@subprotocols
def test_connection_drops_and_counts_duplicates(subprotocol: str) -> None:
    """A frame that was applied is not seen again, in a live stream or an ended one."""
    pair = Pair(subprotocol, streams=1)
    first, second, end = delta(1, 0, "של"), delta(2, 4, "ום"), final(3, 8, "שלום")
    pair.tell(first)
    repeat = pair.tell(second)
    pair.client.receive_data(repeat)
    pair.tell(end)
    pair.client.receive_data(make_codec(subprotocol).encode((first, second, end)))
    assert drained(pair.client) == []
    assert pair.client.statistics().duplicates_dropped == 4
    assert pair.client.state is ConnectionState.OPEN


@subprotocols
@pytest.mark.parametrize(
    "wrong",
    [
        delta(3, 1, "x"),
        delta(2, 2, "x"),
        delta(2, 0, "x"),
        delta(1, 0, "x", stream_id=2),
        final(2, 1, "other text"),
    ],
    ids=["gap", "offset-ahead", "offset-behind", "no-such-stream", "digest"],
)
def test_connection_ends_on_a_frame_that_does_not_fit(subprotocol: str, wrong: Frame) -> None:
    """A hole, a wrong offset or a wrong digest is an error and never a wrong text; the error is final."""
    pair = Pair(subprotocol, streams=1)
    pair.tell(delta(1, 0, "a"))
    with pytest.raises(RemoteProtocolError) as caught:
        pair.client.receive_data(make_codec(subprotocol).encode((wrong,)))
    assert caught.value.close_code is CloseCode.BAD_MESSAGE
    assert pair.client.state is ConnectionState.ERROR
    assert pair.client.next_event() is None
    with pytest.raises(RemoteProtocolError):
        pair.client.receive_data(make_codec(subprotocol).encode((delta(2, 1, "b"),)))
    with pytest.raises(LocalProtocolError):
        pair.client.send(Bye())


def test_connection_gives_out_the_frames_before_the_fault() -> None:
    """What was applied was right; only what follows is lost."""
    pair = Pair(streams=1)
    good = delta(1, 0, "a")
    with pytest.raises(RemoteProtocolError):
        pair.client.receive_data(make_codec("seedance.v1").encode((good, delta(9, 1, "b"))))
    assert drained(pair.client) == [good]


@pytest.mark.parametrize("difference", [b"\x02", b"\x80"])
def test_connection_refuses_a_difference_to_nothing_or_a_broken_one(difference: bytes) -> None:
    """A difference needs the text before it, and must lead to code points."""
    coded = CodedDelta(stream_id=1, id=1, epoch=1, offset=0, difference=difference)
    with pytest.raises(DecodeError, match="to nothing"):
        Pair(streams=1).client.receive_data(make_codec("seedance.v1").encode((coded,)))
    pair = Pair(streams=1)
    pair.tell(delta(1, 0, "é"))
    coded = CodedDelta(stream_id=1, id=2, epoch=1, offset=2, difference=b"\x80")
    with pytest.raises(DecodeError):
        pair.client.receive_data(make_codec("seedance.v1").encode((coded,)))


def test_connection_refuses_a_difference_across_a_flush() -> None:
    """The context is gone on the receiving side too, so both ends would notice that they disagree."""
    pair = Pair(streams=1)
    pair.tell(delta(1, 0, "של"), Flush(stream_id=1, id=2, epoch=1, offset=4))
    coded = CodedDelta(stream_id=1, id=3, epoch=1, offset=4, difference=b"\x02")
    with pytest.raises(DecodeError, match="to nothing"):
        pair.client.receive_data(make_codec("seedance.v1").encode((coded,)))


@subprotocols
@pytest.mark.parametrize(
    "wrong",
    [
        (delta(1, 0, "a\ud800"),),
        (delta(1, 0, "א"), delta(3, 2, "ב")),
        (delta(1, 0, "א"), delta(2, 2, "ב"), Bye()),
        (delta(1, 0, "x" * MAX_MESSAGE_BYTES),),
        (),
        (Submit(sequence_id=2, idempotency_key=KEY, prompt="p"),),
    ],
    ids=["surrogate", "gap", "mixed", "too-large", "nothing", "not-ours"],
)
def test_connection_is_unchanged_when_send_refuses(subprotocol: str, wrong: tuple[Message, ...]) -> None:
    """A LocalProtocolError leaves no trace: the right frames still fit, contexts and all."""
    pair = Pair(subprotocol, streams=1)
    before = pair.server.statistics()
    with pytest.raises(LocalProtocolError):
        pair.server.send(*wrong)
    assert pair.server.statistics() == before
    pair.tell(delta(1, 0, "של"), delta(2, 4, "ום"), final(3, 8, "שלום"))


def test_client_sends_nothing_longer_than_the_server_reads() -> None:
    """The limit in WELCOME is kept before anything is sent, with both numbers in the error."""
    pair = Pair()
    with pytest.raises(MessageTooLargeError) as caught:
        pair.client.send(Submit(sequence_id=1, idempotency_key=KEY, prompt="p" * 1000))
    assert caught.value.limit_bytes == 1000 < caught.value.size_bytes
    pair.say(Submit(sequence_id=1, idempotency_key=KEY, prompt="p"))


@pytest.mark.parametrize("subprotocol", ["seedance.v1.json", "seedance.v1.raw"])
def test_server_hears_of_an_invalid_submit_and_goes_on(subprotocol: str) -> None:
    """The request is refused by its number; the next one is served."""
    pair = Pair(subprotocol)
    pair.client.send(Submit(sequence_id=1, idempotency_key=KEY, prompt="p"))
    pair.server.receive_data(
        '{"type":"submit","sequence_id":1,"idempotency_key":"' + "00" * 16 + '","prompt":"p","top_p":"x"}'
    )
    (event,) = drained(pair.server)
    assert event == InvalidSubmit(sequence_id=1, field="top_p", reason="must be a finite number")
    assert pair.server.pending_submits == 1
    pair.tell(Refused(sequence_id=1, code=ErrorCode.INVALID_REQUEST, message="m", field="top_p"))
    pair.say(Submit(sequence_id=2, idempotency_key=KEY, prompt="p"))
    assert (pair.client.next_sequence_id, pair.server.next_sequence_id) == (3, 3)


def test_server_accepts_a_submit_that_crossed_with_goaway() -> None:
    """The client could not know yet; afterwards it may not."""
    pair = Pair()
    crossing = pair.client.send(Submit(sequence_id=1, idempotency_key=KEY, prompt="p"))
    pair.tell(GoAway(reason=""))
    pair.server.receive_data(crossing)
    pair.tell(Refused(sequence_id=1, code=ErrorCode.DRAINING, message=""))
    with pytest.raises(LocalProtocolError):
        pair.client.send(Submit(sequence_id=2, idempotency_key=KEY, prompt="p"))


def test_client_ignores_what_arrives_after_bye_and_the_server_says_no_more() -> None:
    """The end is the end on both sides, whatever was in flight."""
    pair = Pair(streams=1)
    late = pair.server.send(delta(1, 0, "a"))
    pair.say(Bye())
    pair.client.receive_data(late)
    assert pair.client.next_event() is None
    with pytest.raises(LocalProtocolError):
        pair.server.send(delta(2, 1, "b"))


def test_connection_knows_what_it_was_made_with() -> None:
    """Role, subprotocol and the first number are there to be asked."""
    connection = Connection(Role.CLIENT, "seedance.v1.raw")
    assert (connection.role, connection.subprotocol) == (Role.CLIENT, "seedance.v1.raw")
    assert connection.state is ConnectionState.START
    with pytest.raises(LocalProtocolError):
        Connection(Role.CLIENT, "seedance.v0")


def test_capability_that_was_not_offered_does_not_hold() -> None:
    """A client of before is spoken to as before, whatever a server says."""
    pair = Pair(streams=1)
    codec = make_codec("seedance.v1")
    told = Connection(Role.CLIENT, "seedance.v1")
    told.send(Hello())
    told.receive_data(codec.encode((evolve(WELCOME, capabilities=(PIECES, ZSTD)),)))
    for client in (pair.client, told):
        with pytest.raises(DecodeError, match="not agreed"):
            client.receive_data(codec.encode((Pieces(number=1, stream_ids=(1,), data=b"x"),)))
    assert codec.decode_server(pair.server.send(delta(1, 0, "a"))) == (delta(1, 0, "a"),)


def test_new_connection_knows_nothing_of_the_one_before() -> None:
    """Numbers, names, differences and what was compressed all begin anew behind WELCOME and RESUMED."""
    before = Pair(streams=1, capabilities=(PIECES, ZSTD), durability=Durability.COMMITTED)
    before.tell(delta(1, 0, "שלום"))
    lost = before.server.send(delta(2, 8, " עולם"))
    position = before.client.position(1)
    assert position is not None
    after = Pair(capabilities=(PIECES, ZSTD))
    for end in (after.client, after.server):
        end.know_streams(1)
    after.client.know_position(1, *position)
    after.say(Resume(stream_id=1, last_processed_id=1))
    after.tell(Resumed(stream_id=1, next_id=2, epoch=1, first_available_id=1, last_id=2, live=True))
    after.tell(delta(2, 8, " עולם"))
    after.tell(final(3, 17, "שלום עולם"))
    with pytest.raises(RemoteProtocolError):
        Pair(streams=1, capabilities=(PIECES, ZSTD)).client.receive_data(lost)


def test_lost_pieces_are_a_gap_where_a_stream_can_be_resumed() -> None:
    """Else they are the server's fault; an envelope that comes again is dropped and counted."""
    pair = Pair(streams=2, capabilities=(PIECES,), durability=Durability.COMMITTED)
    pair.tell(delta(1, 0, "a"), delta(1, 0, "b", 2))
    again = pair.tell(delta(2, 1, "a"), delta(2, 1, "b", 2))
    pair.client.receive_data(again)
    assert not drained(pair.client)
    assert pair.client.statistics().duplicates_dropped == 2
    pair.server.send(delta(3, 2, "a"))
    pair.client.receive_data(pair.server.send(delta(4, 3, "a")))
    assert {event.stream_id for event in drained(pair.client) if isinstance(event, Gap)} == {1, 2}
    pair.say(Resume(stream_id=1, last_processed_id=2))
    pair.tell(Resumed(stream_id=1, next_id=3, epoch=1, first_available_id=1, last_id=4, live=True))
    pair.tell(delta(3, 2, "a"), delta(4, 3, "a"), delta(5, 4, "a"))
    fleeting = Pair(streams=1, capabilities=(PIECES,))
    fleeting.tell(delta(1, 0, "a"))
    fleeting.server.send(delta(2, 1, "a"))
    with pytest.raises(RemoteProtocolError):
        fleeting.client.receive_data(fleeting.server.send(delta(3, 2, "a")))


def test_message_that_was_too_large_leaves_no_trace_in_what_is_left_out() -> None:
    """Its halves are sent instead: numbers, names and contexts are those of before."""
    pair = Pair(streams=1, capabilities=(PIECES, ZSTD))
    pair.tell(delta(1, 0, "ש"))
    huge = delta(2, 2, "x" * MAX_MESSAGE_BYTES)
    with pytest.raises(MessageTooLargeError):
        pair.server.send(huge)
    pair.tell(delta(2, 2, "לום"), delta(3, 8, "a"))
    assert pair.client.statistics().frames_received == 3

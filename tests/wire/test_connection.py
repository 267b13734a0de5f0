"""One end of a connection, and two of them back to back."""

from __future__ import annotations

import hashlib
from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.connection import MAX_MESSAGE_BYTES, Connection, InvalidSubmit
from seedance_wire.envelope import CodedDelta
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
    Error,
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
    StageTiming,
    Submit,
    Usage,
    Welcome,
)
from seedance_wire.state import ConnectionState, Role
from tests.strategies import line_texts, near_texts, texts

subprotocols = pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
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

    def __init__(self, subprotocol: str = "seedance.v1", *, streams: int = 0) -> None:
        self.client = Connection(Role.CLIENT, subprotocol)
        self.server = Connection(Role.SERVER, subprotocol, max_message_bytes=1000)
        self.say(Hello())
        self.tell(WELCOME)
        for number in range(1, streams + 1):
            self.say(Submit(sequence_id=number, idempotency_key=KEY, prompt="p"))
            self.tell(Accepted(sequence_id=number, stream_id=number, durability=Durability.NONE))

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


@subprotocols
def test_connection_carries_a_stream_from_hello_to_bye(subprotocol: str) -> None:
    """The whole life of a connection with one stream, in every encoding."""
    pair = Pair(subprotocol, streams=1)
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


@subprotocols
def test_connection_refuses_a_message_over_its_limit(subprotocol: str) -> None:
    """One byte over, in UTF-8, closes with 1009 before anything is parsed."""
    for payload in ("é" * 501, "x" * 1001, b"x" * 1001):
        server = Connection(Role.SERVER, subprotocol, max_message_bytes=1000)
        with pytest.raises(RemoteProtocolError) as caught:
            server.receive_data(payload)
        assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG


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


class TwoConnections(RuleBasedStateMachine):
    """A client and a server with queues between them, against the texts they should agree on.

    The model knows only what each side was told: which submits are open, what text each stream has.
    Whatever the interleaving, each side sees exactly the messages that the other sent, in order.
    """

    @initialize(subprotocol=st.sampled_from(SUBPROTOCOLS))
    def greet(self, subprotocol: str) -> None:
        """The handshake, delivered at once."""
        self.client = Connection(Role.CLIENT, subprotocol)
        self.server = Connection(Role.SERVER, subprotocol, max_streams=4)
        self.codec = make_codec(subprotocol)
        self.upward: deque[tuple[bytes | str, list[Message]]] = deque()
        self.downward: deque[tuple[bytes | str, list[Message]]] = deque()
        self.unanswered: list[int] = []  # submits that reached the server
        self.written: dict[int, str] = {}  # text of each stream that the server has not ended
        self.frame_ids: dict[int, int] = {}
        self.read: dict[int, int] = {}  # last frame id of each stream that reached the client
        self.delivered: list[Frame] = []
        self.next_stream = 1
        self.draining = self.told = False
        self.duplicates = 0
        self.say(Hello())
        self.deliver_up()
        self.tell(WELCOME)
        self.deliver_down()

    def say(self, *messages: Message) -> None:
        self.upward.append((self.client.send(*messages), list(messages)))

    def tell(self, *messages: Message) -> None:
        self.downward.append((self.server.send(*messages), list(messages)))

    def frame_numbers(self, stream_id: int) -> dict[str, int]:
        """The numbering of the next frame of a stream."""
        self.frame_ids[stream_id] += 1
        offset = len(self.written[stream_id].encode())
        return {"stream_id": stream_id, "id": self.frame_ids[stream_id], "epoch": 1, "offset": offset}

    @rule()
    def submit(self) -> None:
        """The client asks, which it may not once it knows that the server goes away."""
        message = Submit(sequence_id=self.client.next_sequence_id, idempotency_key=KEY, prompt="p")
        if self.told:
            with pytest.raises(LocalProtocolError):
                self.client.send(message)
        else:
            self.say(message)

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """The server answers any open request, accepting where it has room."""
        sequence_id = data.draw(st.sampled_from(self.unanswered))
        self.unanswered.remove(sequence_id)
        if len(self.written) == 4:
            with pytest.raises(LocalProtocolError):
                self.server.send(
                    Accepted(sequence_id=sequence_id, stream_id=self.next_stream, durability=Durability.NONE)
                )
            self.tell(Refused(sequence_id=sequence_id, code=ErrorCode.OVERLOADED, message=""))
            return
        stream_id = self.next_stream
        self.next_stream += data.draw(st.integers(1, 3))
        self.written[stream_id], self.frame_ids[stream_id] = "", 0
        self.tell(Accepted(sequence_id=sequence_id, stream_id=stream_id, durability=Durability.NONE))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """The server sends a batch of frames of any streams, with a flush here and there."""
        frames: list[Message] = []
        for _ in range(data.draw(st.integers(1, 4))):
            stream_id = data.draw(st.sampled_from(sorted(self.written)))
            if data.draw(st.integers(0, 5)) == 0:
                frames.append(Flush(**self.frame_numbers(stream_id)))
                continue
            text = data.draw(near_texts | texts | line_texts)
            frames.append(Delta(**self.frame_numbers(stream_id), text=text))
            self.written[stream_id] += text
        self.tell(*frames)

    @precondition(lambda self: self.written)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        """The server ends a stream, well or not."""
        stream_id = data.draw(st.sampled_from(sorted(self.written)))
        numbers = self.frame_numbers(stream_id)
        text = self.written.pop(stream_id)
        if fails:
            self.tell(Error(**numbers, code=ErrorCode.ENGINE_FAILED, message="m"))
        else:
            self.tell(final(numbers["id"], numbers["offset"], text, stream_id))

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def acknowledge_or_cancel(self, data: st.DataObject) -> None:
        """The client acknowledges or cancels a stream that it knows, live or ended."""
        stream_id = data.draw(st.sampled_from(sorted(self.read)))
        if self.read[stream_id] and data.draw(st.booleans()):
            frame_id = data.draw(st.integers(1, self.read[stream_id]))
            self.say(Ack(processed=((stream_id, frame_id),)))
        else:
            self.say(Cancel(sequence_id=self.client.next_sequence_id, stream_id=stream_id))

    @precondition(lambda self: not self.draining)
    @rule()
    def drain(self) -> None:
        """The server goes away."""
        self.draining = True
        self.tell(GoAway(reason=""))

    @precondition(lambda self: self.upward)
    @rule()
    def deliver_up(self) -> None:
        """One message reaches the server."""
        payload, messages = self.upward.popleft()
        self.server.receive_data(payload)
        assert drained(self.server) == messages
        self.unanswered += [message.sequence_id for message in messages if isinstance(message, Submit)]

    @precondition(lambda self: self.downward)
    @rule()
    def deliver_down(self) -> None:
        """One message reaches the client."""
        payload, messages = self.downward.popleft()
        self.client.receive_data(payload)
        assert drained(self.client) == messages
        for message in messages:
            if isinstance(message, Accepted):
                self.read[message.stream_id] = 0
            elif isinstance(message, Delta | Flush | Error):
                self.read[message.stream_id] = message.id
                self.delivered.append(message)
            self.told |= isinstance(message, GoAway)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An old frame arrives again; nobody sees it."""
        frame = data.draw(st.sampled_from(self.delivered))
        self.client.receive_data(self.codec.encode((frame,)))
        self.duplicates += 1
        assert self.client.next_event() is None

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def misnumber(self, data: st.DataObject) -> None:
        """The server tries a frame that does not follow; nothing comes of it."""
        stream_id = data.draw(st.sampled_from(sorted(self.written)))
        offset = len(self.written[stream_id].encode())
        wrong = data.draw(st.sampled_from([(0, 0), (2, 0), (1, 1)]))
        frame = delta(max(self.frame_ids[stream_id], 1) + wrong[0], offset + wrong[1], "é", stream_id)
        if frame.id == self.frame_ids[stream_id] + 1 and frame.offset == offset:
            return
        with pytest.raises(LocalProtocolError):
            self.server.send(frame)

    @invariant()
    def counts_agree(self) -> None:
        """The server's own tables are what the model says."""
        assert self.server.open_streams == len(self.written)
        assert self.server.pending_submits == len(self.unanswered)
        assert self.client.statistics().duplicates_dropped == self.duplicates


TestTwoConnections = TwoConnections.TestCase

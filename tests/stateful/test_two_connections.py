"""Two connections back to back, against a naive model of what each side should see."""

from __future__ import annotations

import hashlib
from collections import deque

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_wire.capabilities import PIECES, ZSTD, agreed_capabilities
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.connection import Connection, InvalidSubmit
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
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
from seedance_wire.state import Role
from tests.strategies import line_texts, near_texts, texts

KEY = b"k" * 16
LIMITS = Limits(max_message_bytes=262_144, max_streams=4, max_context_tokens=9)
WELCOME = Welcome(session_id="s", epoch=1, last_sequence_id=0, model="m", limits=LIMITS)


def drained(connection: Connection) -> list[Message | InvalidSubmit]:
    """All events that are waiting."""
    events = []
    while (event := connection.next_event()) is not None:
        events.append(event)
    return events


class TwoConnections(RuleBasedStateMachine):
    """A client and a server with queues between them, against the texts they should agree on.

    The model knows only what each side was told: which submits are open, what text each stream has.
    Whatever the interleaving, each side sees exactly the messages that the other sent, in order.
    """

    @initialize(
        subprotocol=st.sampled_from(SUBPROTOCOLS),
        capabilities=st.sampled_from([(), (PIECES,), (PIECES, ZSTD), (ZSTD,)]),
        trial=st.sampled_from([0, 0, 3]),
    )
    def greet(self, subprotocol: str, capabilities: tuple[str, ...], trial: int) -> None:
        """The handshake, delivered at once."""
        self.client = Connection(Role.CLIENT, subprotocol, trial_messages=trial)
        self.server = Connection(Role.SERVER, subprotocol, max_streams=4, trial_messages=trial)
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
        self.say(Hello(capabilities=capabilities))
        self.deliver_up()
        self.tell(evolve(WELCOME, capabilities=agreed_capabilities(capabilities, self.server.capabilities)))
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
            digest = hashlib.sha256(text.encode()).digest()
            usage = Usage(prompt_tokens=1, completion_tokens=1)
            end = Final(finish_reason=FinishReason.STOP, usage=usage, timing=StageTiming(), digest=digest)
            self.tell(Flush(**numbers, final=end))

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

    @precondition(lambda self: self.delivered and not self.server.is_compressing)
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
        id_ = max(self.frame_ids[stream_id], 1) + wrong[0]
        frame = Delta(stream_id=stream_id, id=id_, epoch=1, offset=offset + wrong[1], text="é")
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

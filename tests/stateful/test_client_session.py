"""A client's session against a model of a server, under cuts, losses, duplicates and gaps.

The model server keeps what it promised and speaks only legally. Whatever happens between the two, what came
out of the session is a prefix of each stream's text, and once faults stop everything comes to an end.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_wire.client_session import ClientSession, SessionLost, StreamLost
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Error,
    Flush,
    Hello,
    Refused,
    Resumed,
    Submit,
    UserEvent,
    Welcome,
)
from seedance_wire.stored_form import load_frame
from tests.engine_strategies import picks
from tests.model_server import ModelServer, ModelStream
from tests.strategies import near_texts

MAX_GAPS = 3  # so many for a stream without progress are mended, more are an error


class SessionMachine(RuleBasedStateMachine):
    """The session, the server, and two directions of messages on their way."""

    @initialize(subprotocol=st.sampled_from(SUBPROTOCOLS))
    def begin(self, subprotocol: str) -> None:
        self.codec = make_codec(subprotocol)
        self.server = ModelServer(subprotocol)
        self.session = ClientSession(subprotocol, hello=Hello(), max_unconfirmed=8)
        self.to_server: list[bytes | str] = []
        self.linked = False
        self.keys: dict[int, bytes] = {}  # of each request, by its number
        self.answers: dict[int, str] = {}  # of each request that was answered
        self.truth: dict[int, ModelStream] = {}  # of each stream, by its number
        self.texts: dict[int, str] = {}
        self.last_ids: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.gaps = 0
        self.forgotten = 0
        self.withdrawn: set[int] = set()
        self.reported: dict[int, tuple[UserEvent, ...]] = {}  # by the number of their message
        self.connect()
        self.flow()

    # ---- the client

    @precondition(lambda self: self.session.unanswered < 8)
    @rule(durable=st.sampled_from([True, True, True, False]))
    def submit(self, durable: bool) -> None:
        key = len(self.keys).to_bytes(16)
        durability = Durability.COMMITTED if durable else Durability.NONE
        number = self.session.submit(
            Submit(sequence_id=0, idempotency_key=key, prompt="p", durability=durability)
        )
        assert number not in self.keys
        self.keys[number] = key
        self.pump()

    @precondition(lambda self: self.session.unanswered < 8 and self.truth.keys() - self.ends.keys())
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        open_ = sorted(self.truth.keys() - self.ends.keys())
        self.session.cancel(open_[pick % len(open_)])
        self.pump()

    @precondition(lambda self: self.keys.keys() - self.answers.keys() - self.withdrawn)
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        waiting = sorted(self.keys.keys() - self.answers.keys() - self.withdrawn)
        number = waiting[pick % len(waiting)]
        self.session.withdraw(number)
        self.withdrawn.add(number)
        self.pump()

    @precondition(lambda self: self.session.unanswered < 8)
    @rule()
    def report(self) -> None:
        events = (UserEvent(timestamp=1, user_id=len(self.reported), action="click"),)
        self.reported[self.session.report(events)] = events
        self.pump()

    @precondition(lambda self: self.reported)
    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        self.session.retry(sorted(self.reported)[pick % len(self.reported)])
        self.pump()

    @precondition(lambda self: any(self.last_ids.values()))
    @rule(pick=picks)
    def acknowledge(self, pick: int) -> None:
        taken = sorted(number for number, last in self.last_ids.items() if last)
        number = taken[pick % len(taken)]
        self.session.acknowledge([(number, 1 + pick % self.last_ids[number])])
        self.pump()

    @precondition(lambda self: not self.linked)
    @rule()
    def connect(self) -> None:
        self.to_server = [self.session.connect()]
        self.server.open()
        self.linked = True
        self.take_events()

    @precondition(lambda self: self.linked)
    @rule(pick=st.integers(0, 2))
    def cut_now_and_then(self, pick: int) -> None:
        if pick == 0:
            self.cut()

    def cut(self) -> None:
        self.session.connection_lost()
        self.server.cut()
        self.to_server = []
        self.linked = False
        self.take_events()
        assert self.session.data_to_send() == []

    # ---- what is on its way

    @precondition(lambda self: self.linked)
    @rule()
    def flow(self) -> None:
        for _ in range(2):
            self.deliver_to_server(1000)
            for submit in list(self.server.waiting):
                self.server.answer(submit)
            for stream in self.streams():
                self.server.send_frames(stream)
            self.deliver_to_client(1000)

    @precondition(lambda self: self.to_server)
    @rule(count=st.integers(1, 4))
    def deliver_to_server(self, count: int) -> None:
        for _ in range(count):
            if self.to_server:
                self.server.receive(self.to_server.pop(0))

    @precondition(lambda self: self.server.out)
    @rule(count=st.integers(1, 4))
    def deliver_to_client(self, count: int) -> None:
        for _ in range(count):
            if self.server.out:
                self.session.receive_data(self.server.out.pop(0))
                self.take_events()
                self.pump()

    # ---- the server

    @precondition(lambda self: self.server.waiting)
    @rule(pick=picks, refuse=st.sampled_from([False, False, False, True]))
    def answer(self, pick: int, refuse: bool) -> None:
        submit = self.server.waiting[pick % len(self.server.waiting)]
        if refuse and submit.idempotency_key not in self.server.session.by_key:  # type: ignore[union-attr]
            self.server.refuse(submit)
        else:
            self.server.answer(submit)

    @precondition(lambda self: self.live())
    @rule(pick=picks, texts=st.lists(near_texts, min_size=1, max_size=4), send=st.booleans())
    def generate(self, pick: int, texts: list[str], send: bool) -> None:
        stream = self.live()[pick % len(self.live())]
        for text in texts:
            stream.generate(text)
        if send:
            self.server.send_frames(stream)

    @precondition(lambda self: self.live())
    @rule(pick=picks, how=st.sampled_from(["flush", "finish", "fail"]))
    def mark(self, pick: int, how: str) -> None:
        getattr(self.live()[pick % len(self.live())], how)()

    @precondition(lambda self: self.streams())
    @rule(pick=picks, limit=st.integers(1, 3))
    def send(self, pick: int, limit: int) -> None:
        self.server.send_frames(self.streams()[pick % len(self.streams())], limit)

    @rule()
    def take_events_or_do_not(self) -> None:
        self.server.takes_events = not self.server.takes_events

    @precondition(lambda self: self.server.session is not None)
    @rule()
    def checkpoint(self) -> None:
        self.server.checkpoint()

    @precondition(lambda self: self.forgotten < 2 and self.server.sessions)
    @rule(pick=st.integers(0, 9))
    def forget(self, pick: int) -> None:
        if pick == 0:
            self.forgotten += 1
            self.server.forget_sessions()
            self.cut()

    # ---- a server that repeats itself or leaves something out

    @precondition(lambda self: self.linked and any(s.frames for s in self.streams()))
    @rule(pick=picks)
    def repeat(self, pick: int) -> None:
        known = [s for s in self.streams() if s.frames and self.number_of(s) in self.last_ids]
        candidates = [s for s in known if self.server.sends(s)]
        if candidates:
            stream = candidates[pick % len(candidates)]
            seen = self.last_ids[self.number_of(stream)]
            if seen:
                self.inject(stream, 1 + pick % seen)

    @precondition(lambda self: self.linked and self.gaps < MAX_GAPS)
    @rule(pick=picks)
    def skip(self, pick: int) -> None:
        number_of = self.number_of
        candidates = [
            stream
            for stream in self.streams()
            if stream.durability is Durability.COMMITTED
            and self.server.sends(stream)
            and number_of(stream) in self.last_ids
            and number_of(stream) not in self.ends
            and stream.last_id >= self.last_ids[number_of(stream)] + 2
        ]
        if candidates and not self.server.out and not self.to_server:
            stream = candidates[pick % len(candidates)]
            self.gaps += 1
            self.inject(stream, stream.last_id)

    # ---- what holds

    @invariant()
    def text_is_a_prefix(self) -> None:
        for number, text in getattr(self, "texts", {}).items():
            stream = self.truth[number]
            assert text == stream.text_to(self.last_ids[number])

    @invariant()
    def events_that_count_as_safe_are_at_the_server(self) -> None:
        if hasattr(self, "server") and not self.forgotten:
            kept = {
                batch_id: events
                for session in self.server.sessions.values()
                for batch_id, events in session.batches.items()
            }
            assert all(self.reported[batch_id] == events for batch_id, events in kept.items())
            assert all(number in kept or self.session.keeps(number) for number in self.reported)

    @invariant()
    def one_key_starts_one_generation(self) -> None:
        if hasattr(self, "server"):
            assert all(count <= 1 + self.forgotten for count in self.server.generations.values())

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        if not self.linked:
            self.connect()
        self.server.takes_events = True
        for _ in range(12):
            for stream in self.live():
                stream.finish()
            for number in self.reported:
                self.session.retry(number)
            self.pump()
            self.flow()
            self.server.checkpoint()
        assert self.session.unanswered == self.session.open_streams == 0
        assert self.keys.keys() == self.answers.keys() | self.withdrawn
        assert self.truth.keys() == self.ends.keys()
        for number, end in self.ends.items():
            if end == "ended":
                assert self.texts[number] == self.truth[number].text

    # ---- the means

    def pump(self) -> None:
        self.to_server += self.session.data_to_send()

    def streams(self) -> list[ModelStream]:
        session = self.server.session if hasattr(self, "server") else None
        return [] if session is None else list(session.streams.values())

    def live(self) -> list[ModelStream]:
        return [stream for stream in self.streams() if not stream.ended]

    def number_of(self, stream: ModelStream) -> int:
        return next((number for number, other in self.truth.items() if other is stream), 0)

    def inject(self, stream: ModelStream, frame_id: int) -> None:
        assert self.server.session is not None
        frame = load_frame(stream.frames[frame_id - 1], epoch=self.server.session.epoch)
        if self.session.connected:
            self.session.receive_data(self.codec.encode((frame,)))
            self.take_events()
            self.pump()

    def take_events(self) -> None:
        while (event := self.session.next_event()) is not None:
            match event:
                case Accepted():
                    self.answered(event.sequence_id, "accepted")
                    assert event.stream_id not in self.truth
                    key = self.keys[event.sequence_id]
                    self.truth[event.stream_id] = self.server.session.by_key[key]  # type: ignore[union-attr]
                    self.texts[event.stream_id], self.last_ids[event.stream_id] = "", 0
                case Refused() if event.sequence_id in self.reported:
                    assert self.session.keeps(event.sequence_id)
                case Refused():
                    self.answered(event.sequence_id, "refused")
                case Delta() | Flush() | Error():
                    self.frame(event)
                case StreamLost():
                    assert event.stream_id is not None
                    assert event.stream_id not in self.ends
                    is_durable = self.truth[event.stream_id].durability is Durability.COMMITTED
                    assert self.forgotten or not is_durable
                    self.ends[event.stream_id] = "lost"
                case SessionLost():
                    assert self.forgotten
                case Welcome() | Resumed():
                    assert self.linked

    def answered(self, number: int, how: str) -> None:
        assert number not in self.answers
        assert number not in self.withdrawn
        self.answers[number] = how

    def frame(self, frame: Delta | Flush | Error) -> None:
        number = frame.stream_id
        assert number not in self.ends
        assert frame.id == self.last_ids[number] + 1
        assert frame.offset == len(self.texts[number].encode())
        self.last_ids[number] = frame.id
        if isinstance(frame, Delta):
            self.texts[number] += frame.text
        elif isinstance(frame, Error) or frame.final is not None:
            self.ends[number] = "ended"


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSessionMachine.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]

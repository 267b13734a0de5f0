"""A program that uses the service through the real `ClientSession`, and what it was given.

It asks, reads piece by piece, acknowledges what it took, and comes back when its connection is gone. Each
piece is held against the ledger the moment that the core hands it over: whatever the core promises must be
true then, not only in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define, evolve

from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import ClientSession, SessionLost, StreamLost
from seedance_wire.codes import ErrorCode, ResumeFailure
from seedance_wire.messages import (
    Accepted,
    Checkpoint,
    Delta,
    Error,
    Flush,
    Frame,
    GoAway,
    Hello,
    Refused,
    Resumed,
    Submit,
    Welcome,
)
from seedance_wire.running_digest import RunningDigest
from tests.stateful.live_stream import is_terminal, of_epoch
from tests.stateful.network import Link
from tests.stateful.shared_journal import SharedJournal

__all__ = ["Application", "Story"]


@define(eq=False)
class Story:
    """One request and what came of it.

    Attributes:
        key: Its idempotency key.
        is_other: It is another question under a key that was used.
        stream_id: Its stream, once it has one, as the core numbers it.
        name: The same as the journal knows it.
        given: Frames that the core handed over.
        taken: How many of them the application has taken.
        lost: Why the rest can't be had, if the core said so.
        refused: Why it was refused, if it was.
        ended: Its last frame came.
    """

    key: bytes
    submit: Submit
    is_other: bool = False
    stream_id: int = 0
    name: tuple[str, int] = ("", 0)
    given: list[Frame] = Factory(list)
    taken: int = 0
    lost: ResumeFailure | None = None
    is_lost: bool = False
    refused: ErrorCode | None = None
    ended: bool = False

    @property
    def over(self) -> bool:
        """Nothing more comes of it."""
        return self.ended or self.is_lost or self.refused is not None

    @property
    def text(self) -> str:
        """What the application has been given."""
        return "".join(frame.text for frame in self.given if isinstance(frame, Delta))


@define(eq=False)
class Application:
    """One program.

    Attributes:
        tenant: Whose key it uses.
        session: The core.
        journal: To check against; the core never sees it.
        link: Its connection, if it has one.
        stories: Every request, in order.
        epoch: The highest that it was told, by session.
        sessions_lost: How often.
        numbers_before: Of streams in sessions that are gone: the core never uses a number twice.
        put_off: Requests that a node refused for now.
    """

    tenant: str
    subprotocol: str
    journal: SharedJournal
    session: ClientSession
    link: Link | None = None
    stories: list[Story] = Factory(list)
    waiting: dict[int, Story] = Factory(dict)
    streams: dict[int, Story] = Factory(dict)
    session_id: str = ""
    epoch: int = 0
    checkpoint: int = 0
    sessions_lost: int = 0
    numbers_before: int = 0
    put_off: list[Story] = Factory(list)

    @classmethod
    def new(
        cls, tenant: str, subprotocol: str, journal: SharedJournal, capabilities: Sequence[str] | None
    ) -> Application:
        """A program that has just started, and offers these capabilities, or all."""
        session = ClientSession(subprotocol, hello=Hello(sdk_name="application"), capabilities=capabilities)
        return cls(tenant, subprotocol, journal, session)

    # ---- what it does

    def ask(self, submit: Submit, *, is_other: bool = False) -> Story:
        """Submits a request; it is sent when there is a connection."""
        story = Story(submit.idempotency_key, submit, is_other)
        self.waiting[self.session.submit(submit)] = story
        self.stories.append(story)
        self.flush()
        return story

    def ask_again(self) -> None:
        """Submits what was refused for now, under the same keys."""
        while self.put_off:
            story = self.put_off.pop()
            self.waiting[self.session.submit(story.submit)] = story
        self.flush()

    def start_afresh(self) -> None:
        """Its process dies, and the next one knows nothing but its questions and their keys."""
        self._forget()
        self.session = ClientSession(self.subprotocol, hello=Hello(sdk_name="application"))
        self.session_id, self.epoch = "", 0
        self._ask_anew([story for story in self.stories if not story.over])

    def go_on_from(self, story: Story) -> None:
        """The same, but that the next process has a bookmark of one story, at what was taken of it."""
        taken = story.given[: story.taken]
        digest = RunningDigest()
        text = "".join(frame.text for frame in taken if isinstance(frame, Delta)).encode()
        digest.update(text)
        last_id = taken[-1].id if taken else 0
        bookmark = self.session.bookmark(
            story.stream_id, last_processed_id=last_id, offset=len(text), digest=digest
        )
        self._forget()
        hello = Hello(sdk_name="application")
        restored = Bookmark.from_str(bookmark.to_str())
        self.session = ClientSession(self.subprotocol, hello=hello, bookmark=restored)
        story.given, story.stream_id = taken, restored.stream_id
        self.streams[story.stream_id] = story
        self._ask_anew([other for other in self.stories if not other.over and other is not story])

    def _forget(self) -> None:
        self.lose()
        self.waiting, self.streams, self.put_off = {}, {}, []
        for story in self.stories:
            if story.over:
                story.taken = len(story.given)  # what a process was given and hadn't taken is gone with it
        self.checkpoint = self.numbers_before = 0

    def _ask_anew(self, stories: list[Story]) -> None:
        for story in stories:
            story.given, story.taken, story.stream_id, story.name = [], 0, 0, ("", 0)
            self.waiting[self.session.submit(story.submit)] = story

    def cancel(self, story: Story) -> None:
        """Asks for the end of a stream."""
        self.session.cancel(story.stream_id)
        self.flush()

    def take(self, story: Story, count: int) -> None:
        """Takes pieces, and has that acknowledged."""
        story.taken = min(len(story.given), story.taken + count)
        if story.taken and self.streams.get(story.stream_id) is story:  # not of a process that is gone
            self.session.acknowledge([(story.stream_id, story.given[story.taken - 1].id)])
            self.flush()

    def connect(self, link: Link) -> None:
        """Begins a connection."""
        self.link = link
        link.send_up(self.session.connect())

    def flush(self) -> None:
        """Sends what is due, as after every call."""
        if self.link is not None:
            for payload in self.session.data_to_send():
                self.link.send_up(payload)

    def lose(self) -> None:
        """Learns that its connection is gone."""
        if self.link is not None:
            self.link.client_alive = False
            self.link.break_off()
            self.link = None
            self.session.connection_lost()
            self._read_events()

    def receive(self, payload: bytes | str) -> None:
        """Takes a message from its connection."""
        self.session.receive_data(payload)
        self._read_events()
        self.flush()

    # ---- what it is told

    def _read_events(self) -> None:
        while (event := self.session.next_event()) is not None:
            self._on(event)

    def _on(self, event: object) -> None:
        match event:
            case Welcome():
                self._welcomed(event)
            case Accepted():
                self._accepted(event)
            case Refused():
                self._refused(event)
            case Delta() | Flush() | Error():
                self._given(event)
            case StreamLost():
                self._lost(event)
            case SessionLost():
                self.sessions_lost += 1
                self.numbers_before = max(self.streams, default=0)
            case Checkpoint():
                assert event.sequence_id >= self.checkpoint, "what may be forgotten never grows again"
                self.checkpoint = event.sequence_id
            case Resumed():
                given = self.streams[event.stream_id].given
                assert event.next_id == len(given) + 1, "it goes on behind what came out"
            case GoAway():
                pass
            case _:
                raise AssertionError(f"unexpected: {event}")

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.session_id != self.session_id:
            self.session_id, self.epoch, self.checkpoint = welcome.session_id, 0, 0
        assert welcome.epoch > self.epoch, "epochs never decrease"
        self.epoch = welcome.epoch

    def _accepted(self, accepted: Accepted) -> None:
        story = self.waiting.pop(accepted.sequence_id)
        assert not story.over
        assert not story.is_other, "a key is no request"
        story.stream_id = accepted.stream_id
        story.name = (self.session_id, accepted.stream_id - self.numbers_before)
        self.streams[accepted.stream_id] = story

    def _refused(self, refused: Refused) -> None:
        story = self.waiting.pop(refused.sequence_id)
        if refused.code in (ErrorCode.DRAINING, ErrorCode.OVERLOADED):
            self.put_off.append(story)
        else:
            story.refused = refused.code

    def _given(self, frame: Frame) -> None:
        story = self.streams[frame.stream_id]
        assert not story.over, "one terminal frame at most, the last"
        assert frame.id == len(story.given) + 1, "no duplicate, no gap"
        assert frame.offset == len(story.text.encode()), "offsets add up"
        assert frame.epoch == self.epoch, "of the owner of now"
        assert self.journal.holds(*story.name, frame.id), "every applied frame is durable at that moment"
        kept = of_epoch(self.journal.ledger.frames[story.name][frame.id - 1], frame.epoch)
        assert frame == evolve(kept, stream_id=story.stream_id), "one (stream, id) has one content for ever"
        story.given.append(frame)
        story.ended = is_terminal(frame)

    def _lost(self, event: StreamLost) -> None:
        if event.stream_id is not None:
            story = self.streams[event.stream_id]
        else:
            assert event.sequence_id is not None
            story = self.waiting.pop(event.sequence_id)
        assert not story.over
        story.is_lost, story.lost = True, event.failure

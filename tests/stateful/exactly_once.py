"""Exactly once, as a state machine: real protocol cores, the real journal's rules, two nodes, and bad luck.

Applications read through `ClientSession`, nodes speak through `Connection` and write through `MemoryJournal`;
the network cuts anywhere, nodes are killed, sessions move between nodes that don't know of each other, time
passes. What must hold is asserted where it happens (`application.py`, `shared_journal.py`), between steps
(the invariants here), and in the end, when the faults stop: then everything is delivered whole, or a named
error has said what is missing. Rules that end a story (kills, long waits) are rare, or they hide the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from seedance_server.journal.limits import JournalLimits
from seedance_wire.codec import SUBPROTOCOLS
from seedance_wire.codes import ErrorCode, ResumeFailure
from seedance_wire.connection import Connection
from seedance_wire.messages import Hello, Submit, Welcome
from seedance_wire.state import Role
from tests.stateful.application import Application
from tests.stateful.egress import OwnedSession
from tests.stateful.live_stream import LiveStream
from tests.stateful.network import Link
from tests.stateful.node import Node
from tests.stateful.shared_journal import SharedJournal, at_once
from tests.stateful.upheavals import Upheavals, rarely

__all__ = ["ExactlyOnce", "Parts"]

LIMITS = JournalLimits()
TENANT, STRANGER = "acme", "stranger"
MOST_OPEN = 3
MOST_DROPS = 2
HEALING_ROUNDS = 60
_TEXTS = ["a", " word", "né", "日本語", "🚀", "two\nlines", ""]
_capabilities = st.sampled_from([None, None, (), ("pieces",)])  # mostly what a new client offers
_few = st.sampled_from([1, 1, 2, 3, 5])
_burst = st.sampled_from([1, 1, 2, 3, 5, 40])  # the last fills a window
_sometimes = st.sampled_from([False, False, False, True])


@frozen
class Parts:
    """What a machine is made of; a mutant exchanges one part.

    Attributes:
        node: The servers.
        journal: Their storage.
        application: The client programs.
        patched: Something in the real code that is different while the machine runs.
    """

    node: type[Node] = Node
    journal: type[SharedJournal] = SharedJournal
    application: type[Application] = Application
    patched: Callable[[], AbstractContextManager[object]] = nullcontext


class ExactlyOnce(Upheavals):
    """See above."""

    parts = Parts()

    def __init__(self) -> None:
        super().__init__()
        self.patch = self.parts.patched()
        self.patch.__enter__()

    @initialize(subprotocol=st.sampled_from(SUBPROTOCOLS), capabilities=_capabilities)
    def begin(self, subprotocol: str, capabilities: tuple[str, ...] | None) -> None:
        """Two nodes on one journal, and one application."""
        self.now_s = 1_000_000.0
        self.journal = self.parts.journal(lambda: self.now_s, LIMITS)
        numbers = count(1)
        self.nodes = [
            self.parts.node(name, self.journal, lambda: self.now_s, lambda: next(numbers)) for name in "AB"
        ]
        self.app = self.parts.application.new(TENANT, subprotocol, self.journal, capabilities)
        self.ghosts: list[Link] = []  # connections that only the node still believes in
        self.keys = count(1)
        self.drops_left = MOST_DROPS
        self.waited_long = False
        self.ask()
        self.connect(0, greeted=True)

    # ---- the application

    @precondition(lambda self: sum(not story.over for story in self.app.stories) < MOST_OPEN)
    @rule()
    def ask(self) -> None:
        """It has a question."""
        number = next(self.keys)
        self.app.ask(Submit(sequence_id=1, idempotency_key=number.to_bytes(16), prompt=f"question {number}"))

    def _used_keys(self) -> list[bytes]:
        """Keys of streams that have ended, with no request under way."""
        open_keys = {story.key for story in self.app.stories if not story.over}
        return [story.key for story in self.app.stories if story.ended and story.key not in open_keys]

    @precondition(lambda self: self._used_keys() and not self.waited_long)
    @rule(data=st.data())
    def ask_under_a_used_key(self, data: st.DataObject) -> None:
        """Another question under a key that was used: never an answer to the first."""
        self._ask_another(data.draw(st.sampled_from(self._used_keys())))

    def _ask_another(self, key: bytes) -> None:
        other = Submit(sequence_id=1, idempotency_key=key, prompt="another question")
        self.app.ask(other, is_other=True)

    @precondition(lambda self: self.open_stories())
    @rule(data=st.data(), now=rarely)
    def cancel(self, data: st.DataObject, now: bool) -> None:
        """It has read enough."""
        if now:
            self.app.cancel(data.draw(st.sampled_from(self.open_stories())))

    @precondition(lambda self: any(story.taken < len(story.given) for story in self.app.stories))
    @rule(data=st.data(), pieces=_burst)
    def take(self, data: st.DataObject, pieces: int) -> None:
        """It uses some of what it was given."""
        waiting = [story for story in self.app.stories if story.taken < len(story.given)]
        self.app.take(data.draw(st.sampled_from(waiting)), pieces)

    # ---- the nodes

    def _runnable(self) -> list[tuple[Node, OwnedSession, LiveStream]]:
        return [(node, *each) for node in self.nodes for each in node.runnable()]

    @precondition(lambda self: self._runnable())
    @rule(
        data=st.data(),
        pieces=_burst,
        text=st.sampled_from(_TEXTS),
        last=_sometimes,
        then=st.sampled_from("gcps"),
    )
    def work(self, data: st.DataObject, pieces: int, text: str, last: bool, then: str) -> None:
        """The engine works on one stream; perhaps that is committed, perhaps sent at once, perhaps both."""
        node, session, stream = data.draw(st.sampled_from(self._runnable()))
        for left in range(pieces, 0, -1):
            node.generate(session, stream, text, last=last and left == 1)
        if then in "cs":
            node.commit()
        if then in "ps":
            node.pump()

    @rule(number=st.integers(0, 1))
    def commit(self, number: int) -> None:
        """What was generated becomes durable, or the owner of old learns that it is one."""
        self.nodes[number].commit()

    @rule(number=st.integers(0, 1))
    def pump(self, number: int) -> None:
        """What is durable is sent."""
        self.nodes[number].pump()

    @rule()
    def checkpoint(self) -> None:
        """Clients are told what they may forget."""
        for node in self.nodes:
            for peer in tuple(node.peers.values()):
                node.checkpoint(peer)

    # ---- the network

    @precondition(lambda self: self.app.link is None)
    @rule(number=st.integers(0, 1), greeted=st.sampled_from([True, True, True, False]))
    def connect(self, number: int, greeted: bool) -> None:
        """The client comes back, to either node; to one that leaves only if both do."""
        if self.nodes[number].draining:
            self.nodes[number].leave()
        link = Link(number)
        self.nodes[number].open(link, TENANT, self.app.subprotocol)
        self.app.connect(link)
        if greeted:
            self.deliver_up(1)
            self.deliver_down(1, twice=False)

    @precondition(lambda self: self.app.link is not None)
    @rule(messages=_few)
    def deliver_up(self, messages: int) -> None:
        """Some messages reach the node."""
        link = self.app.link
        assert link is not None
        for _ in range(messages):
            if link.up and link.node_alive:
                self.nodes[link.node].receive(link)

    @precondition(lambda self: self.app.link is not None)
    @rule(messages=_few, twice=rarely)
    def deliver_down(self, messages: int, twice: bool) -> None:
        """Some messages reach the client, frames perhaps twice; or the end of the connection does."""
        for _ in range(messages):
            if (link := self.app.link) is None:
                return
            if link.down:
                payload, spare = link.down.popleft()
                for _ in range(1 + (twice and spare)):
                    self.app.receive(payload)
            elif link.close_code is not None:
                self._lose()

    @precondition(lambda self: self.drops_left and self.app.link is not None and self.app.link.down)
    @rule()
    def drop_frames(self) -> None:
        """A message with frames is lost on the way, as no network should; what follows shows a gap."""
        link = self.app.link
        assert link is not None
        if link.down[0][1]:
            link.down.popleft()
            self.drops_left -= 1

    @precondition(lambda self: self.app.link is not None)
    @rule()
    def cut(self) -> None:
        """The connection is lost, with all that is on its way; the node has not noticed yet."""
        self._lose()

    @precondition(lambda self: self.app.link is not None)
    @rule()
    def move(self) -> None:
        """The connection is lost, and the client is at the other node before anybody has noticed."""
        assert self.app.link is not None
        number = 1 - self.app.link.node
        self._lose()
        self.connect(number, greeted=True)
        self.deliver_up(5)

    def _lose(self) -> None:
        link = self.app.link
        assert link is not None
        self.app.lose()
        if link.node_alive:
            self.ghosts.append(link)

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        """A node notices that a client has gone."""
        link = data.draw(st.sampled_from(self.ghosts))
        self.ghosts.remove(link)
        self.nodes[link.node].lose(link)

    # ---- time, and strangers

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.3, 2.0]))
    def wait(self, seconds: float) -> None:
        """A little time passes."""
        self.now_s += seconds

    @rule(seconds=st.sampled_from([700.0, 4_000.0]), now=rarely)
    def wait_long(self, seconds: float, now: bool) -> None:
        """So much that streams are given up or forgotten."""
        if now:
            self.now_s += seconds
            self.waited_long = True
            at_once(self.journal.sweep())

    @precondition(lambda self: self.app.session_id)
    @rule(known=st.booleans(), guess=st.booleans())
    def steal(self, known: bool, guess: bool) -> None:
        """Another tenant shows a session of this one, or a guess: one answer, and nothing of it."""
        session = next(iter(self.nodes[0].sessions), "unknown") if known else "unknown"
        link = Link()
        self.nodes[0].open(link, STRANGER, self.app.subprotocol)
        stranger = Connection(Role.CLIENT, self.app.subprotocol)
        token = (1).to_bytes(32) if guess else bytes(32)  # the first token that was given out
        link.send_up(stranger.send(Hello(session_id=session, resume_token=token)))
        self.nodes[0].receive(link)
        ((payload, _),) = link.down
        stranger.receive_data(payload)
        welcome = stranger.next_event()
        assert isinstance(welcome, Welcome)
        assert not welcome.session_present, "no tenant gets another's session"
        self.nodes[0].lose(link)

    # ---- what holds between steps

    @invariant()
    def windows_count_what_was_taken(self) -> None:
        """A window is at most 128 frames, and opens by what the application took, not by what arrived."""
        for node in self.nodes:
            for peer in node.peers.values():
                for reader in peer.readers.values():
                    assert reader.window.in_flight <= 128
                    name = (peer.session.id if peer.session else "", reader.stream_id)
                    for story in self.app.stories:
                        if story.name != name:
                            continue
                        taken_id = story.given[story.taken - 1].id if story.taken else 0
                        assert reader.acknowledged <= taken_id, "an ack means that the application took it"
                        if peer.link is self.app.link:
                            waiting = len(story.given) - story.taken
                            assert waiting <= reader.most_held, "a cut gives no second window"

    @invariant()
    def generations_begin_once(self) -> None:
        """One key, one charge."""
        charged = [key for node in self.nodes for key in node.charged]
        assert len(charged) == len(set(charged))

    # ---- in the end the faults stop

    def teardown(self) -> None:
        """Everything is delivered whole, or a named error has said why not; and nothing is left behind."""
        try:
            failed = sys.exc_info()[0] is not None  # then that is the news, and not what follows from it
            if hasattr(self, "app") and not failed:
                self._heal()
                self._ask_otherwise()
                self._check_stories()
                self._check_rows()
        finally:
            self.patch.__exit__(None, None, None)

    def _settle(self) -> None:
        for link in self.ghosts:
            self.nodes[link.node].lose(link)
        for node in self.nodes:
            if node.draining:
                node.leave()

    def _heal(self) -> None:
        self._settle()
        for number in range(HEALING_ROUNDS):
            if number == HEALING_ROUNDS // 2 and self.drops_left < MOST_DROPS and self.app.link is not None:
                self._lose()  # behind a last frame that was dropped nothing follows to show it but this
                self._settle()
            self.app.ask_again()
            if all(story.over for story in self.app.stories):
                return
            if self.app.link is None:
                self.connect(0, greeted=True)
            self.deliver_up(100)
            for node in self.nodes:
                for session, stream in node.runnable():
                    node.generate(session, stream, "end", last=True)
                node.commit()
                node.pump()
            if self.app.link is not None:
                self.deliver_down(1_000, twice=False)
            for story in self.app.stories:
                self.app.take(story, 1_000)
        unfinished = [story for story in self.app.stories if not story.over]
        assert not unfinished, "if faults stop, every stream ends"

    def _ask_otherwise(self) -> None:
        """Every history that has an answer ends with another question under its key."""
        if not self.waited_long and (used := self._used_keys()):
            self._ask_another(used[0])
            self._heal()

    def _check_stories(self) -> None:
        for story in self.app.stories:
            written = self.journal.ledger.frames.get(story.name, [])
            if story.ended:
                assert len(story.given) == len(written), "delivered whole"
            if story.is_lost:
                assert self.waited_long, f"{story.lost} though nothing was given up or deleted"
                assert story.lost is not ResumeFailure.CURSOR_AHEAD
                assert story.lost is not ResumeFailure.DIVERGED
            if story.refused is not None:
                assert story.is_other, "a request that nobody could refuse"
                assert story.refused is ErrorCode.IDEMPOTENCY_MISMATCH

    def _check_rows(self) -> None:
        for node in self.nodes:
            node.kill()
        for session in self.journal._shelf.sessions.values():
            epoch = session.record.epoch
            at_once(self.journal.release_session(session.record.session_id, epoch))
        for _ in range(6):
            self.now_s += 90_000.0
            at_once(self.journal.sweep())
        assert self.journal.rows == 0, "no row is left"

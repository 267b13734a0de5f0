"""The larger mishaps of a history: processes on either side that die, or leave, and what comes after them.

A node that is killed or told to leave forgets everything; the journal is what its next process has. A client
whose process dies has its questions and their keys, and perhaps a bookmark. Each is rare, or hides the rest.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.stateful.application import Application, Story
from tests.stateful.network import Link
from tests.stateful.node import Node

__all__ = ["Upheavals", "rarely"]

rarely = st.integers(0, 9).map(lambda number: number == 7)


class Upheavals(RuleBasedStateMachine):
    """These rules; the machine that has them has the rest.

    Attributes:
        app: The client.
        nodes: The servers.
        ghosts: Connections that only the node still believes in.
    """

    app: Application
    nodes: list[Node]
    ghosts: list[Link]

    def open_stories(self) -> list[Story]:
        """Streams that have begun and not ended, as far as the application knows."""
        return [story for story in self.app.stories if story.stream_id and not story.over]

    @rule(number=st.integers(0, 1), now=rarely)
    def drain(self, number: int, now: bool) -> None:
        """SIGTERM, and later the end; or a node that has begun to leave is gone."""
        node = self.nodes[number]
        if node.draining:
            node.leave()
        elif now:
            node.drain()

    @rule(number=st.integers(0, 1), now=rarely)
    def kill(self, number: int, now: bool) -> None:
        """SIGKILL, and a new process under the same name."""
        if now:
            self.nodes[number].kill()

    # ---- the application's own end

    @rule(now=rarely)
    def start_afresh(self, now: bool) -> None:
        """The client's process dies; its next one asks the same, under the same keys, in a new session."""
        if now:
            self._abandon_link()
            self.app.start_afresh()

    @precondition(lambda self: self.open_stories())
    @rule(data=st.data(), now=rarely)
    def go_on_from_a_bookmark(self, data: st.DataObject, now: bool) -> None:
        """The client's process dies; its next one goes on with one story where its reader was."""
        if now:
            story = data.draw(st.sampled_from(self.open_stories()))
            self._abandon_link()
            self.app.go_on_from(story)

    def _abandon_link(self) -> None:
        if (link := self.app.link) is not None and link.node_alive:
            self.ghosts.append(link)

    @precondition(lambda self: self.app.put_off)
    @rule()
    def ask_again(self) -> None:
        """What was refused for now is asked again."""
        self.app.ask_again()

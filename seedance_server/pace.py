"""How far a stream may go: as far as its quickest reader's window, and not a frame beyond.

What is on its way counts from the moment it is published: frames that a connection hasn't sent yet fill the
window like those that the application hasn't taken. At the marks of `FlowSignal` the readers and the engine
are told the same word. With frames to run ahead, the window counts as so much larger: they lie in the journal
until there is room. Without a reader nothing holds a stream up; its grace does, elsewhere.

It must not know how frames come about or how they are sent.
"""

from __future__ import annotations

from typing import Protocol

from seedance_server.flow import FlowSignal
from seedance_server.tail import FrameTail
from seedance_wire.messages import FlowAction, Status

__all__ = ["Pace", "Reader"]


class Reader(Protocol):
    """Who reads a stream, for the pace only."""

    sent_id: int
    """The last frame that left."""

    @property
    def window_size(self) -> int:
        """Frames that may be unacknowledged."""

    @property
    def room(self) -> int:
        """Frames that may leave before the next acknowledgement."""

    def note_flow(self, action: FlowAction) -> None:
        """The stream's pace has changed."""

    def note_status(self, status: Status) -> None:
        """There is news of why it has no text yet."""


class Pace:
    """Compares a stream with its readers.

    Args:
        tail: The stream's frames.
        ahead: Frames that it may be ahead of a full window.

    Attributes:
        held_since_s: When it was brought to a stand, or None while it may go on.
    """

    def __init__(self, tail: FrameTail, *, ahead: int) -> None:
        self.held_since_s: float | None = None
        self._tail = tail
        self._ahead = ahead
        self._readers: set[Reader] = set()
        self._signal = FlowSignal()

    @property
    def readers(self) -> int:
        """How many there are."""
        return len(self._readers)

    @property
    def action(self) -> FlowAction:
        """The word that holds."""
        return self._signal.action

    @property
    def unread_from(self) -> int | None:
        """The first frame that some reader wasn't sent; None without a reader."""
        return min((reader.sent_id + 1 for reader in self._readers), default=None)

    def add(self, reader: Reader) -> None:
        """From the next `update` on this reader counts too."""
        self._readers.add(reader)

    def remove(self, reader: Reader) -> None:
        """This one doesn't any more. Safe to repeat."""
        self._readers.discard(reader)

    def tell(self, status: Status) -> None:
        """Lets the readers know why there is no text yet."""
        for reader in self._readers:
            reader.note_status(status)

    def credit(self) -> int:
        """Frames that may be made now, for the quickest reader; at most 0 if none may. Only with a reader."""
        return max(self._credit_of(reader) for reader in self._readers)

    def _credit_of(self, reader: Reader) -> int:
        return self._ahead + reader.room - (self._tail.last_id - reader.sent_id)

    def update(self, now_s: float) -> FlowAction | None:
        """Looks at the windows again and tells the readers what changes; None if nothing does."""
        used, capacity = self._use()
        action = self._signal.update(used, capacity)
        if action is None:
            return None
        self.held_since_s = now_s if action is FlowAction.PAUSE else None
        for reader in self._readers:
            reader.note_flow(action)
        return action

    def _use(self) -> tuple[int, int]:
        """Of the window of whoever has the most room, by share."""
        used, capacity = 0, 1
        last_id, is_first = self._tail.last_id, True
        for reader in self._readers:
            window_size = reader.window_size
            its_capacity = self._ahead + window_size
            its_used = window_size - reader.room + last_id - reader.sent_id
            if is_first or its_used * capacity < used * its_capacity:
                used, capacity, is_first = its_used, its_capacity, False
        return used, capacity

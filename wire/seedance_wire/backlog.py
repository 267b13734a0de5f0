"""Messages of a client that the server may not have: kept until their answer has come, whatever is cut.

A SUBMIT is kept until ACCEPTED or REFUSED, which the server says after it has stored it; a CANCEL until its
stream has ended; an EVENT until a CHECKPOINT covers it. So each can always be sent again, and is recognised:
a SUBMIT by its idempotency key, a CANCEL by doing nothing the second time, an EVENT by its batch id. Each has
two numbers: one for the application, for ever, which is the batch id too, and its sequence id on the wire,
which belongs to one session, and of an EVENT to one connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import define

from .errors import BacklogFullError
from .messages import Cancel, Event, Submit

__all__ = ["Backlog", "Entry"]


@define(eq=False)
class Entry:
    """A message that waits for its answer.

    Attributes:
        number: The application's, rising from 1.
        message: What to send; its sequence id counts for nothing, stream ids are the application's.
        sequence_id: Its number in this session, once it was sent there.
        withdrawn: Nobody waits for the answer; it is still to come on this connection, and not asked for on
            another.
    """

    number: int
    message: Submit | Cancel | Event
    sequence_id: int | None = None
    withdrawn: bool = False


class Backlog:
    """All such messages, in the order in which they were given.

    Args:
        limit: Most messages to keep. With the limit on a message's size this bounds the memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[int, Entry] = {}  # by the application's number
        self._sent: deque[Entry] = deque()  # not confirmed by a checkpoint; for `confirm` only
        self._last_number = 0
        self._confirmed = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def confirmed(self) -> int:
        """Messages up to this number are as safe as the last checkpoint said."""
        return self._confirmed

    def submits(self) -> Iterable[Submit]:
        """Yields the SUBMITs that wait."""
        return (
            entry.message
            for entry in self._entries.values()
            if isinstance(entry.message, Submit) and not entry.withdrawn
        )

    def add(self, message: Submit | Cancel | Event) -> Entry:
        """Takes a message.

        Raises:
            BacklogFullError: There is no room; nothing has changed.
        """
        if len(self._entries) >= self._limit:
            raise BacklogFullError(self._limit)
        self._last_number += 1
        entry = self._entries[self._last_number] = Entry(self._last_number, message)
        return entry

    def sent(self, entry: Entry, sequence_id: int) -> None:
        """Notes that a message was sent."""
        if entry.sequence_id != sequence_id:
            entry.sequence_id = sequence_id
            if entry in self._sent:  # an EVENT under its number of before
                self._sent.remove(entry)
            self._sent.append(entry)
            if len(self._sent) > self._limit:
                self._sent.remove(next(filter(self._is_dispensable, self._sent)))

    def _is_dispensable(self, entry: Entry) -> bool:
        """Whether nothing depends on its checkpoint: that of an EVENT which is kept ends the keeping."""
        return not (isinstance(entry.message, Event) and self.holds(entry))

    def holds(self, entry: Entry) -> bool:
        """Says whether it is still worth sending."""
        return entry.number in self._entries

    def keeps(self, number: int) -> bool:
        """Says the same by the application's number."""
        return number in self._entries

    def drop(self, entry: Entry) -> None:
        """Forgets a message that needs no answer any more."""
        self._entries.pop(entry.number, None)

    def withdraw(self, number: int) -> None:
        """Notes that nobody waits for the answer to a message any more."""
        entry = self._entries.get(number)
        if entry is None:
            return
        if entry.sequence_id is None:
            self.drop(entry)
        entry.withdrawn = True

    def answer(self, sequence_id: int) -> Entry | None:
        """Takes out the message that has this sequence id, which was answered."""
        for entry in self._entries.values():
            if entry.sequence_id == sequence_id:
                self.drop(entry)
                return entry
        return None

    def cancel_of(self, stream_id: int) -> Entry | None:
        """Returns the CANCEL of a stream that is under way."""
        for entry in self._entries.values():
            if isinstance(entry.message, Cancel) and entry.message.stream_id == stream_id:
                return entry
        return None

    def defer(self, sequence_id: int) -> Entry | None:
        """Returns the EVENT that has this sequence id, to be sent again under another one; None: no EVENT."""
        for entry in self._entries.values():
            if entry.sequence_id == sequence_id and isinstance(entry.message, Event):
                entry.sequence_id = None
                return entry
        return None

    def deferred(self, number: int) -> Entry | None:
        """Returns an EVENT by its number if it is not under way on this connection."""
        entry = self._entries.get(number)
        waits = entry is not None and isinstance(entry.message, Event) and entry.sequence_id is None
        return entry if waits else None

    def confirm(self, sequence_id: int) -> int:
        """Notes that everything up to a sequence id is safe, as a CHECKPOINT said; returns `confirmed`."""
        for entry in self._take_confirmed(sequence_id):
            if isinstance(entry.message, Event) and entry.sequence_id is not None:
                self.drop(entry)
        return self._confirmed

    def _take_confirmed(self, sequence_id: int) -> list[Entry]:
        taken = []
        while self._sent and (self._sent[0].sequence_id or 0) <= sequence_id:
            taken.append(self._sent.popleft())
            self._confirmed = max(self._confirmed, taken[-1].number)
        return taken

    def resend(self, last_sequence_id: int) -> Sequence[Entry]:
        """Returns what to send on a new connection of the same session, in order.

        What the server has by its count goes first and keeps its number. The rest gets new ones: what was
        answered meanwhile is not sent, and its number would be missing. So does every EVENT: one that the
        server has counted may be one that it refused, and the answer was lost.
        """
        self._take_confirmed(last_sequence_id)
        self._forget_the_connection()
        known = []
        new = []
        for entry in self._entries.values():
            numbered = not isinstance(entry.message, Event) and entry.sequence_id is not None
            if numbered and (entry.sequence_id or 0) <= last_sequence_id:
                known.append(entry)
            else:
                entry.sequence_id = None
                new.append(entry)
        return [*sorted(known, key=lambda entry: entry.sequence_id or 0), *new]

    def restart(self) -> Sequence[Entry]:
        """Returns what to send in a new session: every SUBMIT and EVENT. Streams to cancel are gone."""
        self._forget_the_connection()
        for entry in list(self._entries.values()):
            entry.sequence_id = None
            if isinstance(entry.message, Cancel):
                self.drop(entry)
        return list(self._entries.values())

    def _forget_the_connection(self) -> None:
        self._sent.clear()
        for entry in list(self._entries.values()):
            if entry.withdrawn:
                self.drop(entry)

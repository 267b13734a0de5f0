"""The numbers of a client's messages on one connection, and which of them wait for an answer.

SUBMIT, CANCEL and EVENT share one counter, which goes on from the session's last. Where a session goes on,
what the server has may first come again, rising. A SUBMIT waits for ACCEPTED or REFUSED; an EVENT for REFUSED
or the CHECKPOINT that covers it. Checks change nothing and say what is wrong; whose fault that is, is the
business of `state.py`.
"""

from __future__ import annotations

from .rules import MAX_PENDING

__all__ = ["SequenceIds"]


class SequenceIds:
    """The counter and what waits.

    Attributes:
        next: What the next new message carries; known from WELCOME on.
    """

    def __init__(self) -> None:
        self.next = 1
        self._repeats_up_to = 0  # sequence ids that may come again
        self._repeated = 0  # the last one that did
        self._submits: set[int] = set()
        self._events: set[int] = set()

    @property
    def submits(self) -> int:
        """SUBMITs that wait."""
        return len(self._submits)

    def begin(self, last: int, *, repeats: bool) -> None:
        """Notes the last number of the session, and whether numbers up to it may come again."""
        self.next = last + 1
        self._repeats_up_to = last if repeats else 0

    def fault(self, sequence_id: int) -> str | None:
        """Says what is wrong with the number of a message, or None."""
        if sequence_id == self.next or self._repeated < sequence_id <= self._repeats_up_to:
            return None
        return f"sequence id {sequence_id} where {self.next} is next"

    def flood(self) -> str | None:
        """Says why no more may wait, or None."""
        if max(len(self._submits), len(self._events)) >= MAX_PENDING:
            return f"{MAX_PENDING} SUBMITs or EVENTs are unanswered"
        return None

    def waits(self, sequence_id: int, *, event: bool = False) -> bool:
        """Says whether a SUBMIT waits under this number; with ``event``, or an EVENT."""
        return sequence_id in self._submits or (event and sequence_id in self._events)

    def count(self, sequence_id: int) -> None:
        """Takes the number of a message that needs no answer of its own."""
        if sequence_id == self.next:
            self.next += 1
            self._repeats_up_to = 0  # what is new comes after all repeats
        else:
            self._repeated = sequence_id

    def count_submit(self, sequence_id: int) -> None:
        """Takes the number of a SUBMIT, which waits from here."""
        self._submits.add(sequence_id)
        self.count(sequence_id)

    def count_event(self, sequence_id: int) -> None:
        """Takes the number of an EVENT, which waits from here."""
        self._events.add(sequence_id)
        self.count(sequence_id)

    def answer(self, sequence_id: int) -> None:
        """Notes that ACCEPTED or REFUSED came."""
        self._submits.discard(sequence_id)
        self._events.discard(sequence_id)

    def cover(self, sequence_id: int) -> None:
        """Notes that a CHECKPOINT came."""
        if self._events:
            self._events = {waiting for waiting in self._events if waiting > sequence_id}

"""Reported events of a journal in memory: the rules of `event_rows.py` in plain dictionaries.

It must not know tasks or the clock: whoever calls says what time it is.
"""

from __future__ import annotations

from collections.abc import Container

from attrs import Factory, define

from seedance_server.journal.errors import EventsFull
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.records import EventBatch, NewEventBatch

__all__ = ["HeldEvents"]


@define
class HeldEvents:
    """All batches that some sink has not taken, and marks of those that all have.

    Attributes:
        limits: Bounds.
        batches: Those that wait, by their keys, in order.
        marks: Every batch known, by session, the oldest first.
        cursors: The last key that each sink has taken.
    """

    limits: JournalLimits
    batches: dict[int, EventBatch] = Factory(dict)
    marks: dict[str, dict[int, int]] = Factory(dict)
    cursors: dict[str, int] = Factory(dict)
    _last_key: int = 0

    def take(self, session_id: str, tenant: str, batch: NewEventBatch, now_ms: int) -> None:
        """Keeps a batch unless it is known.

        Raises:
            EventsFull: There is no room.
        """
        marks = self.marks.setdefault(session_id, {})
        if batch.batch_id in marks:
            return
        waiting = sum(len(held.payload) for held in self.batches.values() if held.tenant == tenant)
        if waiting + len(batch.payload) > self.limits.event_bytes:
            raise EventsFull(tenant, waiting, self.limits.event_bytes)
        self._last_key += 1
        marks[batch.batch_id] = self._last_key
        self.batches[self._last_key] = EventBatch(
            key=self._last_key,
            session_id=session_id,
            tenant=tenant,
            batch_id=batch.batch_id,
            received_ms=now_ms,
            payload=batch.payload,
        )
        self._prune(marks)

    def _prune(self, marks: dict[int, int]) -> None:
        for batch_id in sorted(marks)[: -self.limits.event_marks]:
            if marks[batch_id] not in self.batches:
                del marks[batch_id]

    def read(self, after_key: int, count: int, size: int) -> tuple[EventBatch, ...]:
        """See `event_rows.read_events`."""
        page: list[EventBatch] = []
        for key, batch in self.batches.items():
            if key <= after_key:
                continue
            size -= len(batch.payload)
            if len(page) == count or (page and size < 0):
                break
            page.append(batch)
        return tuple(page)

    def commit(self, sink: str, key: int, forget_up_to: int) -> None:
        """See `Journal.commit_events`."""
        self.cursors[sink] = max(key, self.cursors.get(sink, 0))
        for taken in [held for held in self.batches if held <= forget_up_to]:
            del self.batches[taken]

    def forget_sessions(self, known: Container[str]) -> int:
        """Forgets the marks of sessions that are gone; returns how many."""
        count = 0
        for session_id in [gone for gone in self.marks if gone not in known]:
            marks = self.marks[session_id]
            forgotten = [batch_id for batch_id, key in marks.items() if key not in self.batches]
            for batch_id in forgotten:
                del marks[batch_id]
            count += len(forgotten)
            if not marks:
                del self.marks[session_id]
        return count

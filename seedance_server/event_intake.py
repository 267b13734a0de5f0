"""Reported events of one connection on their way into the journal, one batch after the other.

Each is answered once: by the checkpoint that covers it, after its commit, or by REFUSED, which goes out
before its number counts as processed, so that no checkpoint can cover what was refused. What finds no room,
here, in the journal or in its tenant's quota, is refused with a time to come again: the client keeps it.

It must not know sinks, nor what an event says.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable

from attrs import frozen

from seedance_server.accounts import Account
from seedance_server.errors import RequestRefused
from seedance_server.journal.errors import EventsFull, JournalFull, JournalOverloaded
from seedance_server.journal.records import NewEventBatch
from seedance_server.outbox import Outbox
from seedance_server.session import Session
from seedance_wire.messages import ErrorCode, Event, Refused
from seedance_wire.stored_form import dump_events

__all__ = ["EventIntake"]

_RETRY_MS = 1_000
"""When to come again: by then a sink that is only slow has taken some. Picked, not measured."""


@frozen
class _Waiting:
    sequence_id: int
    events: int
    batch: NewEventBatch | None
    refusal: RequestRefused | None


class EventIntake:
    """Takes the events of one connection.

    Args:
        session: Whose they are.
        outbox: Where refusals go.
        account: Its tenant's: how many events that may report. A batch that comes again counts again.
        limit_bytes: Events that may wait here.
        start: Starts a task on the connection's behalf.
        on_processed: Called whenever a message was processed.
    """

    def __init__(
        self,
        session: Session,
        outbox: Outbox,
        *,
        account: Account,
        limit_bytes: int,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        on_processed: Callable[[], None],
    ) -> None:
        self._session = session
        self._outbox = outbox
        self._account = account
        self._limit_bytes = limit_bytes
        self._start = start
        self._on_processed = on_processed
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._is_at_work = False

    def put(self, event: Event) -> None:
        """Takes a message; never waits."""
        self._waiting.append(self._judge(event))
        if not self._is_at_work:
            self._is_at_work = True
            self._start(self._work)

    def _judge(self, event: Event) -> _Waiting:
        sequence_id, count = event.sequence_id, len(event.events)
        if not self._session.takes_events:
            refusal = RequestRefused(ErrorCode.UNSUPPORTED, "this server keeps no events")
            return _Waiting(sequence_id, count, None, refusal)
        payload = dump_events(event.events)
        if self._waiting_bytes + len(payload) > self._limit_bytes:
            refusal = _later("events come faster than they can be kept")
            return _Waiting(sequence_id, count, None, refusal)
        if (wait_s := self._account.take_events(count)) > 0:
            refusal = RequestRefused(
                ErrorCode.RATE_LIMITED,
                "this tenant reports more events a minute than it may",
                retry_after_ms=math.ceil(wait_s * 1e3),
            )
            return _Waiting(sequence_id, count, None, refusal)
        self._waiting_bytes += len(payload)
        batch = NewEventBatch(sequence_id=sequence_id, batch_id=event.batch_id, payload=payload)
        return _Waiting(sequence_id, count, batch, None)

    async def _work(self) -> None:
        try:
            while self._waiting:
                waiting = self._waiting.popleft()
                refusal = waiting.refusal
                if waiting.batch is not None:
                    try:
                        refusal = await self._keep(waiting.batch)
                    finally:
                        self._waiting_bytes -= len(waiting.batch.payload)
                    if refusal is not None:
                        self._account.give_events_back(waiting.events)
                if refusal is not None:
                    await self._refuse(waiting.sequence_id, refusal)
                self._on_processed()
        finally:
            self._is_at_work = False

    async def _keep(self, batch: NewEventBatch) -> RequestRefused | None:
        try:
            await self._session.take_events(batch)
        except JournalFull as error:
            return RequestRefused(ErrorCode.JOURNAL_FULL, str(error), retry_after_ms=_RETRY_MS)
        except (EventsFull, JournalOverloaded):
            return _later("events wait to be taken; there is no room for more")
        return None

    async def _refuse(self, sequence_id: int, refusal: RequestRefused) -> None:
        self._outbox.put_control(
            Refused(
                sequence_id=sequence_id,
                code=refusal.code,
                message=refusal.reason,
                retryable=refusal.retry_after_ms is not None,
                retry_after_ms=refusal.retry_after_ms,
            )
        )
        await self._session.record(sequence_id)


def _later(reason: str) -> RequestRefused:
    return RequestRefused(ErrorCode.OVERLOADED, reason, retry_after_ms=_RETRY_MS)

"""Brings reported events from the journal to every sink, each from where it has committed.

A sink that fails or stands still holds back nobody: the others go on, its events wait in the journal within
the quota, and beyond it clients are told to report later. What every sink has committed the journal forgets.

It must not know connections.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from seedance_server.event_sink import EventSink, ReportedEvent
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import EventBatch
from seedance_wire.stored_form import load_events

__all__ = ["EventDelivery"]

_log = structlog.get_logger(__name__)

_LEAST_PAUSE_S = 0.5
"""Before a sink that failed is run again; doubled each time, up to the next figure. Picked, not measured."""
_LONGEST_PAUSE_S = 30.0


class EventDelivery:
    """Runs the sinks.

    Args:
        journal: Where events wait.
        sinks: Where they go; their names differ.
    """

    def __init__(self, journal: Journal, sinks: Sequence[EventSink]) -> None:
        self._feeds = {sink.name: _Feed(self, journal, sink.name) for sink in sinks}
        self._sinks = tuple(sinks)
        self._news = trio.Event()

    @property
    def has_sinks(self) -> bool:
        """Whether events go anywhere."""
        return bool(self._sinks)

    @property
    def news(self) -> trio.Event:
        """Set when something was committed after this was asked for."""
        return self._news

    def committed_beside(self, sink: str, key: int) -> int:
        """The key up to which every sink has committed, once this one has up to ``key``."""
        return min([key, *(feed.committed for name, feed in self._feeds.items() if name != sink)])

    def notify(self) -> None:
        """Says that events were committed to the journal."""
        self._news.set()
        self._news = trio.Event()

    async def run(self) -> None:
        """Runs every sink, again and again, until cancelled."""
        async with trio.open_nursery() as nursery:
            for sink in self._sinks:
                nursery.start_soon(self._run_for_ever, sink)

    async def _run_for_ever(self, sink: EventSink) -> None:
        feed = self._feeds[sink.name]
        pause_s = _LEAST_PAUSE_S
        while True:
            committed = feed.committed
            try:
                await feed.rewind()
                await sink.run(feed)
                reason = "it ended"
            except Exception as error:  # noqa: BLE001 - whatever a sink does, its events wait and others go on
                reason = f"{type(error).__name__}: {error}"
            if feed.committed > committed:
                pause_s = _LEAST_PAUSE_S
            _log.warning("event sink stopped", sink=sink.name, reason=reason, again_in_s=pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Feed:
    """An `EventFeed` for one sink."""

    def __init__(self, delivery: EventDelivery, journal: Journal, sink: str) -> None:
        self._delivery = delivery
        self._journal = journal
        self._sink = sink
        self._taken = 0
        self.committed = 0

    async def rewind(self) -> None:
        """Goes back to what was committed."""
        self._taken = self.committed = await self._journal.event_cursor(self._sink)

    async def take(self) -> tuple[ReportedEvent, ...]:
        """See `EventFeed.take`."""
        while True:
            news = self._delivery.news  # asked for before looking, or what comes between is missed
            batches = await self._journal.read_events(self._taken)
            if batches:
                self._taken = batches[-1].key
                return tuple(event for batch in batches for event in _events(batch))
            await news.wait()

    async def commit(self) -> None:
        """See `EventFeed.commit`."""
        taken = self._taken
        forget_up_to = self._delivery.committed_beside(self._sink, taken)
        await self._journal.commit_events(self._sink, taken, forget_up_to=forget_up_to)
        self.committed = taken


def _events(batch: EventBatch) -> list[ReportedEvent]:
    return [
        ReportedEvent(
            id=f"{batch.session_id}:{batch.batch_id}:{index}",
            tenant=batch.tenant,
            session_id=batch.session_id,
            received_ms=batch.received_ms,
            timestamp=event.timestamp,
            user_id=event.user_id,
            action=event.action,
            payload=event.payload,
        )
        for index, event in enumerate(load_events(batch.payload))
    ]

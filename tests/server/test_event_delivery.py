"""Tests of `seedance_server.event_delivery`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from seedance_server.event_delivery import EventDelivery
from seedance_server.event_sink import EventFeed
from seedance_server.journal.memory import MemoryJournal
from seedance_wire.messages import UserEvent
from seedance_wire.stored_form import dump_events
from tests.server.journal.journal_made import LIMITS, new_batch, new_session, running


class Sink:
    """Keeps what it was given; fails as often as it is told, after taking or before committing."""

    def __init__(self, name: str = "sink", failures: int = 0, *, commits: bool = True) -> None:
        self.name = name
        self.failures = failures
        self.commits = commits
        self.ids: list[str] = []

    async def run(self, feed: EventFeed) -> None:
        while True:
            events = await feed.take()
            self.ids += [event.id for event in events]
            if self.failures:
                self.failures -= 1
                raise OSError("no room")
            if self.commits:
                await feed.commit()


@asynccontextmanager
async def delivering(journal: MemoryJournal, *sinks: Sink) -> AsyncIterator[EventDelivery]:
    """A delivery at work."""
    delivery = EventDelivery(journal, sinks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.run)
        yield delivery
        nursery.cancel_scope.cancel()


async def report(journal: MemoryJournal, delivery: EventDelivery, number: int, count: int = 1) -> None:
    events = [UserEvent(timestamp=1, user_id=number, action="a") for _ in range(count)]
    await journal.take_events("s", 1, new_batch(number, dump_events(events)))
    delivery.notify()


async def test_events_reach_every_sink_in_order_and_are_forgotten_then(autojump_clock) -> None:
    """What all have committed, and nothing sooner."""
    fast, slow = Sink("fast"), Sink("slow", commits=False)
    async with running(MemoryJournal(LIMITS)) as journal:
        await journal.create_session(new_session())
        async with delivering(journal, fast, slow) as delivery:
            await report(journal, delivery, 1, 2)
            await report(journal, delivery, 2)
            await trio.sleep(1)
            assert fast.ids == slow.ids == ["s:1:0", "s:1:1", "s:2:0"]
            assert len(await journal.read_events(0)) == 2
            slow.commits = True
            await report(journal, delivery, 3)
            await trio.sleep(1)
        # The last to commit was either: with one more commit the other's share goes too.
        assert len(await journal.read_events(0)) <= 1
        assert not EventDelivery(journal, ()).has_sinks


async def test_events_that_had_no_commit_come_again_under_their_ids(autojump_clock) -> None:
    """To a sink that failed, after a pause; and after a restart, to none that had committed."""
    sink = Sink(failures=2)
    async with running(MemoryJournal(LIMITS)) as journal:
        await journal.create_session(new_session())
        async with delivering(journal, sink) as delivery:
            await report(journal, delivery, 1)
            await trio.sleep(0.4)
            assert sink.ids == ["s:1:0"]
            await trio.sleep(5)
            assert sink.ids == ["s:1:0"] * 3
        again = Sink()
        async with delivering(journal, again) as delivery:
            await report(journal, delivery, 2)
            await trio.sleep(1)
            assert again.ids == ["s:2:0"]


async def test_sink_that_fails_holds_back_no_other(autojump_clock) -> None:
    """Its events wait."""
    good, bad = Sink("good"), Sink("bad", failures=99)
    async with running(MemoryJournal(LIMITS)) as journal:
        await journal.create_session(new_session())
        async with delivering(journal, good, bad) as delivery:
            for number in (1, 2, 3):
                await report(journal, delivery, number)
                await trio.sleep(0.1)
            assert good.ids == ["s:1:0", "s:2:0", "s:3:0"]
            assert len(await journal.read_events(0)) == 3


async def test_sink_that_ends_is_run_again(autojump_clock) -> None:
    """There is no last event."""

    class Once(Sink):
        async def run(self, feed: EventFeed) -> None:
            self.ids += [event.id for event in await feed.take()]
            await feed.commit()

    sink = Once()
    async with running(MemoryJournal(LIMITS)) as journal:
        await journal.create_session(new_session())
        async with delivering(journal, sink) as delivery:
            for number in (1, 2):
                await report(journal, delivery, number)
                await trio.sleep(60)
    assert sink.ids == ["s:1:0", "s:2:0"]

"""Tests of `seedance_server.event_intake`, through a whole server."""

import random

import pytest
import trio

from seedance_server.config import Config
from seedance_server.event_sink import EventFeed
from seedance_server.journal.errors import JournalFull
from seedance_server.journal.memory import MemoryJournal
from seedance_server.tenants import Rate, Tenant
from seedance_server.testing import serve_in_memory
from seedance_wire.messages import ErrorCode, Event, UserEvent
from tests.server.failing_journal import FailingJournal
from tests.server.wire_client import WireClient, wire_client


class Sink:
    """Keeps what it was given; stands still until it may go on."""

    name = "sink"

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.may_go_on = trio.Event()
        self.may_go_on.set()

    async def run(self, feed: EventFeed) -> None:
        while True:
            await self.may_go_on.wait()
            events = await feed.take()
            self.taken += [(event.tenant, event.user_id) for event in events]
            await feed.commit()


def noise(size: int) -> bytes:
    """A payload that no compression makes smaller."""
    return random.Random(size).randbytes(size)


async def report(client: WireClient, batch_id: int, payload: bytes = b"") -> int:
    """Reports one event, of the user of this number."""
    sequence_id = client.connection.next_sequence_id
    event = UserEvent(timestamp=1, user_id=batch_id, action="click", payload=payload)
    await client.send(Event(sequence_id=sequence_id, batch_id=batch_id, events=(event,)))
    return sequence_id


async def checkpoint(client: WireClient, sequence_id: int) -> None:
    """Waits for the checkpoint that covers a message; nothing else may come."""
    while not client.checkpoints or client.checkpoints[-1].sequence_id < sequence_id:
        client.checkpoints.append(await client.receive_any())


async def test_events_are_kept_before_their_checkpoint_and_taken_once(autojump_clock) -> None:
    """In their order, whatever comes again in whichever message."""
    sink = Sink()
    async with serve_in_memory(event_sinks=[sink]) as server, wire_client(server.connect()) as client:
        for batch_id in (1, 2, 2, 3, 1):
            last = await report(client, batch_id)
        await checkpoint(client, last)
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1, 2, 3]


async def test_events_that_come_again_after_a_cut_or_a_restart_are_taken_once(autojump_clock) -> None:
    """On another connection, and by the next process on the same journal."""
    sink, journal = Sink(), MemoryJournal()
    async with serve_in_memory(event_sinks=[sink], journal=journal) as server:
        async with wire_client(server.connect()) as client:
            await report(client, 1)
            await trio.sleep(1)
            former = client.welcome
        async with wire_client(server.connect(), former=former) as client:
            await checkpoint(client, await report(client, 1))
    async with (
        serve_in_memory(event_sinks=[sink], journal=journal) as server,
        wire_client(server.connect(), former=former) as client,
    ):
        await report(client, 1)
        await checkpoint(client, await report(client, 2))
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1, 2]


async def test_events_are_refused_where_they_would_go_nowhere(autojump_clock) -> None:
    """For good: nothing is kept that nobody will take."""
    async with serve_in_memory() as server, wire_client(server.connect()) as client:
        await report(client, 1)
        refused = await client.refused()
        assert (refused.code, refused.retryable) == (ErrorCode.UNSUPPORTED, False)
        await client.submit()
        await client.accepted()
        await client.until_end()
        assert client.checkpoints[-1].sequence_id == 2


async def test_events_are_refused_for_a_while_when_their_sink_stands_still(autojump_clock) -> None:
    """They are never lost in silence; once the sink goes on there is room again."""
    sink = Sink()
    sink.may_go_on = trio.Event()
    config = Config(model_path="m", events_quota_bytes=400)
    async with (
        serve_in_memory(event_sinks=[sink], config=config) as server,
        wire_client(server.connect()) as client,
    ):
        await checkpoint(client, await report(client, 1, noise(300)))
        await report(client, 2, noise(300))
        refused = await client.refused()
        assert (refused.code, refused.retryable, refused.retry_after_ms) == (ErrorCode.OVERLOADED, True, 1000)
        sink.may_go_on.set()
        await trio.sleep(1)
        await checkpoint(client, await report(client, 2, noise(300)))
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1, 2]


async def test_events_over_the_tenants_quota_are_refused_for_a_while(autojump_clock) -> None:
    """With the time to come again; another tenant's quota is its own, and what was refused costs nothing."""
    sink = Sink()
    async with serve_in_memory(event_sinks=[sink]) as server, wire_client(server.connect()) as client:
        server.gate.accounts.update([Tenant(name="local", events_per_minute=Rate(2, 2, 2))])
        await report(client, 1)
        await checkpoint(client, await report(client, 2))
        await report(client, 3)
        refused = await client.refused()
        assert (refused.code, refused.retryable) == (ErrorCode.RATE_LIMITED, True)
        assert refused.retry_after_ms == pytest.approx(30_000, abs=2_000)
        await trio.sleep(refused.retry_after_ms / 1e3)
        await checkpoint(client, await report(client, 3))
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1, 2, 3]


async def test_events_that_found_no_room_in_the_journal_cost_no_quota(autojump_clock) -> None:
    """A tenant pays for what was kept."""
    sink, journal = Sink(), FailingJournal()
    async with (
        serve_in_memory(event_sinks=[sink], journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        server.gate.accounts.update([Tenant(name="local", events_per_minute=Rate(1, 1, 1))])
        journal.faults["take_events"] = lambda *_: JournalFull(new_work=True)
        await report(client, 1)
        assert (await client.refused()).code is ErrorCode.JOURNAL_FULL
        journal.faults.clear()
        await checkpoint(client, await report(client, 1))


async def test_events_are_refused_by_a_number_that_is_noted_as_processed(autojump_clock) -> None:
    """A server that dies right after a refusal does not take the refused number for one that it never saw."""
    sink, journal = Sink(), FailingJournal()
    async with serve_in_memory(event_sinks=[sink], journal=journal) as server:
        async with wire_client(server.connect()) as client:
            journal.faults["take_events"] = lambda *_: JournalFull(new_work=True)
            refused_id = await report(client, 1)
            assert (await client.refused()).sequence_id == refused_id
            await checkpoint(client, refused_id)
            former = client.welcome
        journal.faults.clear()
    async with (
        serve_in_memory(event_sinks=[sink], journal=journal) as server,
        wire_client(server.connect(), former=former) as client,
    ):
        assert client.welcome.session_present
        assert client.welcome.last_sequence_id == refused_id
        again_id = await report(client, 1)
        assert again_id == refused_id + 1
        await checkpoint(client, again_id)
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1]


async def test_events_faster_than_the_journal_are_refused(autojump_clock) -> None:
    """What waits here is bounded."""
    sink, journal = Sink(), FailingJournal()
    config = Config(model_path="m", events_waiting_bytes=1_000)
    async with serve_in_memory(event_sinks=[sink], config=config, journal=journal) as server:
        async with wire_client(server.connect()) as client:
            journal.commit_s = 1.0
            for batch_id in (1, 2, 3):
                await report(client, batch_id, noise(400))
            assert (await client.refused()).sequence_id == 3
            await checkpoint(client, 3)
        journal.commit_s = 0.0
        await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1, 2]


@pytest.mark.parametrize("retried", [True, False])
async def test_events_are_refused_for_a_while_when_the_disk_is_full(autojump_clock, retried: bool) -> None:
    """The refusal comes before any checkpoint that covers it."""
    sink, journal = Sink(), FailingJournal()
    async with (
        serve_in_memory(event_sinks=[sink], journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        journal.faults["take_events"] = lambda *_: JournalFull(new_work=True)
        await report(client, 1)
        refused = await client.refused()
        assert (refused.code, refused.retryable) == (ErrorCode.JOURNAL_FULL, True)
        assert not client.checkpoints
        await checkpoint(client, 1)
        journal.faults.clear()
        if retried:
            await checkpoint(client, await report(client, 1))
            await trio.sleep(1)
    assert [user_id for _, user_id in sink.taken] == [1] * retried

"""What every journal must do with reported events; a subclass in a test file gives the journal."""

from __future__ import annotations

from functools import partial

import pytest
from attrs import evolve

from seedance_server.journal.errors import EventsFull, Fenced, SessionNotFound, TooManyEarlyMessages
from seedance_server.journal.interface import Journal
from tests.server.journal.journal_made import LIMITS, MakeJournal, new_batch, new_session, running

DAY = 86_400.0


async def _waiting(journal: Journal, after_key: int = 0) -> list[tuple[str, int, bytes]]:
    """What a sink would find."""
    batches = await journal.read_events(after_key)
    assert sorted(batch.key for batch in batches) == [batch.key for batch in batches]
    return [(batch.session_id, batch.batch_id, batch.payload) for batch in batches]


class EventConformance:
    """Subclasses define the fixture ``make_journal``, a `MakeJournal`; time stands still unless moved."""

    async def test_events_come_back_in_the_order_of_their_commits(
        self, make_journal: MakeJournal, mock_clock
    ):
        """Of all sessions, over a restart too, with whose they are."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t", tenant="other"))
            assert await journal.take_events("s", 1, new_batch(1, b"one")) == 1
            assert await journal.take_events("t", 1, new_batch(1, b"two")) == 1
            assert await journal.take_events("s", 1, new_batch(2, b"three")) == 2
        async with running(make_journal(LIMITS)) as journal:
            first, second, _ = await journal.read_events(0)
            assert await _waiting(journal) == [("s", 1, b"one"), ("t", 1, b"two"), ("s", 2, b"three")]
            assert await _waiting(journal, first.key) == [("t", 1, b"two"), ("s", 2, b"three")]
        assert (first.tenant, second.tenant) == ("acme", "other")
        assert first.received_ms > 1_600_000_000_000

    async def test_events_of_one_batch_are_kept_once(self, make_journal: MakeJournal, mock_clock):
        """In the same message, in a later one, after a sink has taken them, after a restart; other sessions
        have numbers of their own."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t"))
            await journal.take_events("s", 1, new_batch(7, b"one", sequence_id=1))
            await journal.take_events("s", 1, new_batch(7, b"one", sequence_id=1))
            assert await journal.take_events("s", 1, new_batch(7, b"one", sequence_id=2)) == 2
            await journal.take_events("t", 1, new_batch(7, b"two", sequence_id=1))
            assert await _waiting(journal) == [("s", 7, b"one"), ("t", 7, b"two")]
            last = (await journal.read_events(0))[-1].key
            await journal.commit_events("file", last, forget_up_to=last)
        async with running(make_journal(LIMITS)) as journal:
            assert await journal.take_events("s", 1, new_batch(7, b"one", sequence_id=3)) == 3
            assert await _waiting(journal) == []

    async def test_cursors_of_sinks_are_apart_and_never_go_back(self, make_journal: MakeJournal, mock_clock):
        """A sink begins with all that there is; a restart goes on behind what it committed."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            for number in (1, 2):
                await journal.take_events("s", 1, new_batch(number))
            first, second = [batch.key for batch in await journal.read_events(0)]
            await journal.commit_events("file", second, forget_up_to=0)
            await journal.commit_events("file", first, forget_up_to=0)
        async with running(make_journal(LIMITS)) as journal:
            assert await journal.event_cursor("file") == second
            assert await journal.event_cursor("other") == 0
            await journal.commit_events("other", first, forget_up_to=first)
            assert await _waiting(journal) == [("s", 2, b"events")]

    async def test_events_wait_for_their_sinks_in_bounds(self, make_journal: MakeJournal, mock_clock):
        """A tenant whose events nobody takes is refused; nothing is noted then, and others are served."""
        async with running(make_journal(evolve(LIMITS, event_bytes=1_000))) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t", tenant="other"))
            await journal.take_events("s", 1, new_batch(1, bytes(800)))
            with pytest.raises(EventsFull) as caught:
                await journal.take_events("s", 1, new_batch(2, bytes(300)))
            assert caught.value.limit_bytes == 1_000
            assert caught.value.waiting_bytes >= 800
            assert await journal.take_events("s", 1, new_batch(1, bytes(800))) == 1
            assert await journal.take_events("t", 1, new_batch(1, bytes(800))) == 1
            last = (await journal.read_events(0))[-1].key
            await journal.commit_events("file", last, forget_up_to=last)
            assert await journal.take_events("s", 1, new_batch(2, bytes(300))) == 2

    async def test_events_are_taken_from_the_owner_only(self, make_journal: MakeJournal, mock_clock):
        """The epoch is checked in the storage, and a client that leaves gaps is bounded as ever."""
        async with running(make_journal(evolve(LIMITS, early_messages=1))) as journal:
            await journal.create_session(new_session())
            await journal.adopt_session("s")
            for refused, operation in (
                (Fenced, partial(journal.take_events, "s", 1, new_batch(1))),
                (SessionNotFound, partial(journal.take_events, "?", 1, new_batch(1))),
            ):
                with pytest.raises(refused):
                    await operation()
            assert await journal.take_events("s", 2, new_batch(2)) == 0
            with pytest.raises(TooManyEarlyMessages):
                await journal.take_events("s", 2, new_batch(3))
            assert await _waiting(journal) == [("s", 2, b"events")]
            assert await journal.take_events("s", 2, new_batch(1)) == 2

    async def test_page_of_events_is_bounded(self, make_journal: MakeJournal, mock_clock):
        """In bytes, but never empty while there is one."""
        async with running(make_journal(evolve(LIMITS, page_bytes=1_000))) as journal:
            await journal.create_session(new_session())
            for number, size in enumerate((400, 500, 400, 2_000, 1), 1):
                await journal.take_events("s", 1, new_batch(number, bytes(size)))
            pages, after_key = [], 0
            while batches := await journal.read_events(after_key):
                pages.append([batch.batch_id for batch in batches])
                after_key = batches[-1].key
        assert pages == [[1, 2], [3], [4], [5]]

    async def test_marks_go_with_their_session_and_events_do_not(self, make_journal: MakeJournal, mock_clock):
        """What no sink has taken is kept, whatever becomes of the client."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            for number in (1, 2):
                await journal.take_events("s", 1, new_batch(number))
            first, second = [batch.key for batch in await journal.read_events(0)]
            await journal.commit_events("file", first, forget_up_to=first)
            assert (await journal.sweep()).event_marks == 0
            await journal.release_session("s", 1)
            mock_clock.jump(DAY)
            swept = await journal.sweep()
            assert (swept.sessions, swept.event_marks) == (1, 1)
            assert await _waiting(journal) == [("s", 2, b"events")]
            await journal.commit_events("file", second, forget_up_to=second)
            assert (await journal.sweep()).event_marks == 1
            assert not await journal.sweep()

    async def test_old_marks_are_forgotten(self, make_journal: MakeJournal, mock_clock):
        """A session that reports for ever keeps as many as its client may have unanswered, and few more."""
        async with running(make_journal(evolve(LIMITS, event_marks=10))) as journal:
            await journal.create_session(new_session())
            for number in range(1, 301):
                await journal.take_events("s", 1, new_batch(number))
                key = (await journal.read_events(0))[0].key
                await journal.commit_events("file", key, forget_up_to=key)
            await journal.release_session("s", 1)
            mock_clock.jump(DAY)
            assert 10 <= (await journal.sweep()).event_marks <= 10 + 64

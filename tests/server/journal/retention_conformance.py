"""What every journal must forget, and what it must not; a subclass in a test file gives the journal."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from attrs import evolve

from seedance_server.journal.errors import (
    Fenced,
    SessionNotFound,
    StreamExpired,
    StreamNotFound,
    TenantQuotaExceeded,
)
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import StreamState
from tests.server.journal.journal_made import (
    LIMITS,
    TOKEN_HASH,
    MakeJournal,
    WallClock,
    frames_from,
    new_session,
    new_stream,
    running,
)

HOUR, DAY = 3_600.0, 86_400.0


async def _finished(journal: Journal, session_id: str = "s", sequence_id: int = 1, size: int = 3) -> None:
    """A stream with two frames, the second terminal."""
    submission = await journal.submit(
        session_id, 1, new_stream(sequence_id, f"{session_id}{sequence_id}".encode())
    )
    frames = frames_from(1, 0, size, 0)
    await journal.append(session_id, 1, submission.stream.stream_id, frames, finish="stop")


class RetentionConformance:
    """Subclasses define the fixtures ``make_journal`` and ``wall_clock``, which it reads."""

    async def test_finished_stream_is_kept_as_long_as_promised(self, make_journal: MakeJournal, mock_clock):
        """For an hour a finished stream can be resumed; then the answer says that it was."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await _finished(journal)
            mock_clock.jump(HOUR - 1)
            assert not await journal.sweep()
            assert len((await journal.read_frames("s", 1, 0, 10)).frames) == 2
            mock_clock.jump(1)
            swept = await journal.sweep()
            assert (swept.frames, swept.expired) == (2, 1)
            for operation in (
                partial(journal.read_frames, "s", 1, 0, 10),
                partial(journal.read_frames, "s", 1, 2, 10),
                partial(journal.load_stream, "s", 1),
            ):
                with pytest.raises(StreamExpired) as caught:
                    await operation()
                assert (caught.value.first_available_id, caught.value.last_id) == (3, 2)
            record = await journal.find_stream("s", 1)
        assert (record.state, record.stored_bytes) == (StreamState.EXPIRED, 0)

    async def test_live_stream_of_an_attached_client_is_never_forgotten(
        self, make_journal: MakeJournal, mock_clock
    ):
        """What a takeover needs stays as long as there is something to take over."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            mock_clock.jump(30 * DAY)
            assert not await journal.sweep()
            await journal.append("s", 1, 1, frames_from(1, 0, 1))

    async def test_session_without_its_client_ends_in_time(self, make_journal: MakeJournal, mock_clock):
        """Live streams of a client that doesn't come back are abandoned, and their writer is fenced."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 1))
            await journal.release_session("s", 1)
            mock_clock.jump(599)
            assert not await journal.sweep()
            await journal.release_session("s", 1)  # a second release doesn't prolong it
            mock_clock.jump(1)
            swept = await journal.sweep()
            assert [(stream.stream_id, stream.state) for stream in swept.abandoned] == [
                (1, StreamState.ABANDONED)
            ]
            with pytest.raises(Fenced):
                await journal.append("s", 1, 1, frames_from(2, 1, 1))
            assert len((await journal.read_frames("s", 1, 0, 10)).frames) == 1

    async def test_claim_stops_the_clock_of_a_session(self, make_journal: MakeJournal, mock_clock):
        """A client that came back has all the time again."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.release_session("s", 1)
            mock_clock.jump(599)
            await journal.claim_session("s", "acme", TOKEN_HASH)
            mock_clock.jump(DAY)
            assert not await journal.sweep()

    async def test_session_lives_as_long_as_something_can_be_read(
        self, make_journal: MakeJournal, mock_clock
    ):
        """The token must claim a session while one of its streams can be resumed."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("empty"))
            await _finished(journal)
            await journal.release_session("s", 1)
            await journal.release_session("empty", 1)
            mock_clock.jump(HOUR - 1)
            assert (await journal.sweep()).sessions == 1
            with pytest.raises(SessionNotFound):
                await journal.claim_session("empty", "acme", TOKEN_HASH)
            claimed = await journal.claim_session("s", "acme", TOKEN_HASH)
            await journal.release_session("s", claimed.session.epoch)
            mock_clock.jump(600)
            swept = await journal.sweep()
            assert (swept.expired, swept.sessions) == (1, 1)
            with pytest.raises(SessionNotFound):
                await journal.claim_session("s", "acme", TOKEN_HASH)

    async def test_key_is_remembered_longer_than_its_stream(self, make_journal: MakeJournal, mock_clock):
        """A request repeated within a day never starts a second generation, even if the first is gone."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await _finished(journal)
            mock_clock.jump(DAY - 1)
            await journal.sweep()
            again = await journal.submit("s", 1, new_stream(2, b"s1"))
            assert (again.replayed, again.stream.state) == (True, StreamState.EXPIRED)
            mock_clock.jump(1)
            assert (await journal.sweep()).requests == 1
            with pytest.raises(StreamExpired) as caught:
                await journal.read_frames("s", 1, 0, 10)
            assert (caught.value.first_available_id, caught.value.last_id) == (1, 0)
            anew = await journal.submit("s", 1, new_stream(3, b"s1"))
            assert (anew.replayed, anew.stream.stream_id) == (False, 2)

    async def test_key_of_a_long_stream_outlives_a_day(self, make_journal: MakeJournal, mock_clock):
        """A key isn't forgotten before the stream that it stands for."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            mock_clock.jump(2 * DAY)
            await journal.sweep()
            assert (await journal.submit("s", 1, new_stream())).replayed

    async def test_forgotten_session_leaves_no_stream_to_others(self, make_journal: MakeJournal, mock_clock):
        """A session that is gone has no streams, and a new one of the same name doesn't inherit any."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.record_message("s", 1, 2)
            await journal.release_session("s", 1)
            mock_clock.jump(DAY)
            assert (await journal.sweep()).sessions == 1
            with pytest.raises(StreamNotFound):
                await journal.find_stream("s", 1)
            await journal.create_session(new_session())
            assert await journal.record_message("s", 1, 1) == 1

    async def test_quota_forces_the_oldest_finished_streams_out(self, make_journal: MakeJournal, mock_clock):
        """A tenant's new work takes the place of its own oldest answers, of nobody else's."""
        async with running(make_journal(evolve(LIMITS, tenant_bytes=10_000))) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t", tenant="other"))
            await _finished(journal, "t", size=4_000)
            for sequence_id in (1, 2, 3):
                mock_clock.jump(1)
                await _finished(journal, "s", sequence_id, size=4_000)
            states = [(await journal.find_stream("s", stream_id)).state for stream_id in (1, 2, 3)]
            assert states == [StreamState.FINISHED] * 3  # the third came while there was room
            await journal.submit("s", 1, new_stream(4))
            states = [(await journal.find_stream("s", stream_id)).state for stream_id in (1, 2, 3, 4)]
            assert states == [StreamState.EXPIRED, *[StreamState.FINISHED] * 2, StreamState.LIVE]
            assert (await journal.find_stream("t", 1)).state is StreamState.FINISHED

    async def test_sweep_enforces_the_quota_too(self, make_journal: MakeJournal, mock_clock):
        """Streams that grew over the quota go when they have ended."""
        async with running(make_journal(evolve(LIMITS, tenant_bytes=5_000))) as journal:
            await journal.create_session(new_session())
            await _finished(journal, size=9_000)
            assert (await journal.sweep()).expired == 1

    async def test_quota_refuses_new_work_beside_live_streams(self, make_journal: MakeJournal, mock_clock):
        """Live streams are never forced out: the tenant waits instead, and nothing is written."""
        async with running(make_journal(evolve(LIMITS, tenant_bytes=5_000))) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 5_000))
            with pytest.raises(TenantQuotaExceeded) as caught:
                await journal.submit("s", 1, new_stream(2))
            assert caught.value.limit_bytes == 5_000
            assert (await journal.submit("s", 1, new_stream(1))).replayed
            await journal.append("s", 1, 1, frames_from(2, 5_000, 5_000))

    async def test_restart_gives_clients_their_time_again(
        self, make_journal: MakeJournal, wall_clock: WallClock, mock_clock
    ):
        """No client could come back to a server that wasn't there."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
        wall_clock.now_s += DAY
        async with running(make_journal(LIMITS)) as journal:
            mock_clock.jump(599)
            assert not await journal.sweep()
            mock_clock.jump(1)
            assert len((await journal.sweep()).abandoned) == 1

    @pytest.mark.parametrize("jump_s", [-DAY, DAY])
    async def test_wall_clock_that_jumps_changes_nothing(
        self, make_journal: MakeJournal, wall_clock: WallClock, mock_clock, jump_s: float
    ):
        """A running journal measures time by the monotonic clock."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await _finished(journal)
            await journal.submit("s", 1, new_stream(2))
            await journal.release_session("s", 1)
            wall_clock.now_s += jump_s
            mock_clock.jump(599)
            assert not await journal.sweep()

    async def test_wall_clock_set_back_does_not_keep_streams_for_ever(
        self, make_journal: MakeJournal, wall_clock: WallClock, mock_clock
    ):
        """Ends that lie in the future at a start count from the start."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await _finished(journal)
        wall_clock.now_s -= 365 * DAY
        async with running(make_journal(LIMITS)) as journal:
            mock_clock.jump(DAY)
            swept = await journal.sweep()
        assert (swept.expired, swept.sessions, swept.requests) == (1, 1, 1)

    async def test_journal_sweeps_by_itself(self, make_journal: MakeJournal, mock_clock):
        """Nobody has to remember forgetting."""
        async with running(make_journal(evolve(LIMITS, sweep_interval_s=10))) as journal:
            await journal.create_session(new_session())
            await _finished(journal)
            mock_clock.jump(HOUR)
            with trio.fail_after(1e9):
                while (await journal.find_stream("s", 1)).state is not StreamState.EXPIRED:
                    await trio.testing.wait_all_tasks_blocked()

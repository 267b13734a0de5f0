"""What every journal must do when a request comes again in another session of its tenant."""

from __future__ import annotations

import pytest
from attrs import evolve

from seedance_server.journal.errors import Fenced, IdempotencyMismatch, RequestInUse, StreamExpired
from seedance_server.journal.records import StreamState
from tests.server.journal.journal_made import (
    LIMITS,
    TOKEN_HASH,
    MakeJournal,
    frames_from,
    new_session,
    new_stream,
    running,
)


class MoveConformance:
    """Subclasses define the fixture ``make_journal``; two sessions, the first one's client has gone."""

    async def test_stream_moves_whole_to_whoever_repeats_its_request(
        self, make_journal: MakeJournal, mock_clock
    ):
        """Its frames, its inputs and its next position come along, under the new session's next number."""
        async with running(make_journal(LIMITS)) as journal:
            for name in "st":
                await journal.create_session(new_session(name))
            await journal.submit("s", 1, new_stream(1, b"key"))
            await journal.append("s", 1, 1, frames_from(1, 0, 3, 4))
            before = await journal.load_stream("s", 1)
            await journal.release_session("s", 1)
            await journal.submit("t", 1, new_stream(1, b"other"))
            moved = await journal.submit("t", 1, new_stream(2, b"key"))
            assert (moved.replayed, moved.moved_from, moved.last_sequence_id) == (True, "s", 2)
            record = evolve(before.record, session_id="t", stream_id=2)
            assert moved.stream == record
            assert await journal.load_stream("t", 2) == evolve(before, record=record)
            assert (await journal.read_frames("t", 2, 0, 9)).frames == tuple(frames_from(1, 0, 3, 4))
            await journal.append("t", 1, 2, frames_from(3, 7, 1), finish="stop")
            assert (await journal.find_stream("t", 2)).state is StreamState.FINISHED
            assert (await journal.submit("t", 1, new_stream(3))).stream.stream_id == 3

    async def test_session_that_lost_a_stream_is_fenced_and_says_that_it_is_gone(
        self, make_journal: MakeJournal, mock_clock
    ):
        """Whoever wrote the stream writes nothing more, in any session; the other streams stay."""
        async with running(make_journal(LIMITS)) as journal:
            for name in "st":
                await journal.create_session(new_session(name))
            await journal.submit("s", 1, new_stream(1, b"key"))
            await journal.submit("s", 1, new_stream(2))
            await journal.release_session("s", 1)
            await journal.submit("t", 1, new_stream(1, b"key"))
            for stream_id in (1, 2):
                with pytest.raises(Fenced):
                    await journal.append("s", 1, stream_id, frames_from(1, 0, 1))
            claimed = await journal.claim_session("s", "acme", TOKEN_HASH)
            assert [stream.stream_id for stream in claimed.streams] == [2]
            for read in (journal.find_stream("s", 1), journal.read_frames("s", 1, 0, 9)):
                with pytest.raises(StreamExpired):
                    await read
            await journal.append("s", claimed.session.epoch, 2, frames_from(1, 0, 1))

    async def test_stream_stays_where_a_client_is_attached(self, make_journal: MakeJournal, mock_clock):
        """Nobody is robbed of what is being read; once that client is gone, it moves."""
        async with running(make_journal(LIMITS)) as journal:
            for name in "st":
                await journal.create_session(new_session(name))
            await journal.submit("s", 1, new_stream(1, b"key"))
            with pytest.raises(RequestInUse):
                await journal.submit("t", 1, new_stream(1, b"key"))
            await journal.append("s", 1, 1, frames_from(1, 0, 1))
            assert await journal.record_message("t", 1, 2) == 0
            await journal.release_session("s", 1)
            assert (await journal.submit("t", 1, new_stream(1, b"key"))).last_sequence_id == 2

    async def test_stream_moves_to_none_but_its_own_request_and_tenant(
        self, make_journal: MakeJournal, mock_clock
    ):
        """Key and fingerprint are the proof; a stranger's same key begins a stream of its own."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t"))
            await journal.create_session(new_session("u", tenant="other"))
            await journal.submit("s", 1, new_stream(1, b"key"))
            await journal.release_session("s", 1)
            with pytest.raises(IdempotencyMismatch):
                await journal.submit("t", 1, new_stream(1, b"key", fingerprint=b"other"))
            assert not (await journal.submit("u", 1, new_stream(1, b"key"))).replayed
            assert (await journal.find_stream("s", 1)).state is StreamState.LIVE

    async def test_moved_stream_outlives_a_restart(self, make_journal: MakeJournal, mock_clock):
        """It is where it went, for the next process too, and moves on from there."""
        async with running(make_journal(LIMITS)) as journal:
            for name in "st":
                await journal.create_session(new_session(name))
            await journal.submit("s", 1, new_stream(1, b"key"))
            await journal.append("s", 1, 1, frames_from(1, 0, 3))
            await journal.release_session("s", 1)
            await journal.submit("t", 1, new_stream(1, b"key"))
        async with running(make_journal(LIMITS)) as journal:
            (recovered,) = await journal.recover()
            assert (recovered.session.session_id, recovered.streams[0].last_id) == ("t", 1)
            await journal.create_session(new_session("u"))
            moved = await journal.submit("u", 1, new_stream(1, b"key"))
            assert (moved.moved_from, moved.stream.text_bytes) == ("t", 3)

    async def test_known_requests_are_told_by_tenant_and_key(self, make_journal: MakeJournal, mock_clock):
        """As long as sending one again would start nothing, and to nobody else."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            assert not await journal.knows_request("acme", b"key")
            await journal.submit("s", 1, new_stream(1, b"key"))
            assert await journal.knows_request("acme", b"key")
            assert not await journal.knows_request("other", b"key")
            assert not await journal.knows_request("acme", b"other")

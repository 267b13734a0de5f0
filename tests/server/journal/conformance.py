"""What every journal must do; a subclass in a test file gives the journal."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from attrs import evolve

from seedance_server.journal.append import Append
from seedance_server.journal.errors import (
    CursorAhead,
    Fenced,
    IdempotencyMismatch,
    JournalClosed,
    OutOfOrder,
    SessionNotFound,
    StreamEnded,
    StreamNotFound,
    TooManyEarlyMessages,
)
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


class JournalConformance:
    """Subclasses define the fixture ``make_journal``, a `MakeJournal`; time stands still unless moved."""

    # ---- sessions

    async def test_session_begins_empty(self, make_journal: MakeJournal, mock_clock):
        """A new session has its first owner, no message and no stream."""
        async with running(make_journal(LIMITS)) as journal:
            session = await journal.create_session(new_session())
        assert (session.session_id, session.tenant, session.epoch) == ("s", "acme", 1)
        assert (session.last_sequence_id, session.next_stream_id, session.released_ms) == (0, 1, None)

    async def test_session_is_not_created_twice(self, make_journal: MakeJournal, mock_clock):
        """A name is given once; the first session stays as it is."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            with pytest.raises(ValueError, match="there is a session"):
                await journal.create_session(new_session(tenant="other"))
            assert (await journal.adopt_session("s")).session.tenant == "acme"

    async def test_claim_takes_everything_over(self, make_journal: MakeJournal, mock_clock):
        """A new owner learns the new epoch, the last message and where each stream stands."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 3, 4))
            claimed = await journal.claim_session("s", "acme", TOKEN_HASH)
        assert (claimed.session.epoch, claimed.session.last_sequence_id) == (2, 1)
        (stream,) = claimed.streams
        assert (stream.stream_id, stream.next_frame_id, stream.text_bytes) == (1, 3, 7)
        assert (stream.state, stream.first_available_id) == (StreamState.LIVE, 1)

    @pytest.mark.parametrize(
        ("session_id", "tenant", "token_hash"),
        [("?", "acme", TOKEN_HASH), ("s", "other", TOKEN_HASH), ("s", "acme", bytes(32))],
        ids=["unknown", "foreign", "wrong-token"],
    )
    async def test_claim_gives_one_answer_when_it_is_not_allowed(
        self, make_journal: MakeJournal, mock_clock, session_id, tenant, token_hash
    ):
        """A tenant can't find out whether another's session exists, and the owner isn't disturbed."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            with pytest.raises(SessionNotFound) as caught:
                await journal.claim_session(session_id, tenant, token_hash)
            assert str(caught.value) == "no such session"
            assert await journal.record_message("s", 1, 1) == 1

    async def test_older_owner_writes_nothing_after_a_claim(self, make_journal: MakeJournal, mock_clock):
        """The epoch is checked in the storage on every operation that writes."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.claim_session("s", "acme", TOKEN_HASH)
            for operation in (
                partial(journal.append, "s", 1, 1, frames_from(1, 0, 1)),
                partial(journal.append, "s", 1, 1, frames_from(1, 0, 0), finish="stop"),
                partial(journal.submit, "s", 1, new_stream(2)),
                partial(journal.record_message, "s", 1, 2),
                partial(journal.release_session, "s", 1),
                partial(journal.abandon, "s", 1, 1),
            ):
                with pytest.raises(Fenced) as caught:
                    await operation()
                assert (caught.value.epoch, caught.value.current_epoch) == (1, 2)
            with pytest.raises(Fenced):
                await journal.record_message("s", 3, 2)  # not even an epoch that is still to come
            claimed = await journal.adopt_session("s")
        assert claimed.session.last_sequence_id == 1
        assert [(stream.next_frame_id, stream.state) for stream in claimed.streams] == [(1, StreamState.LIVE)]

    async def test_recover_adopts_sessions_with_live_streams(self, make_journal: MakeJournal, mock_clock):
        """A process that starts takes over what still runs, and leaves the rest to its clients."""
        async with running(make_journal(LIMITS)) as journal:
            for name in ("live", "finished", "empty"):
                await journal.create_session(new_session(name))
            for name in ("live", "finished"):
                await journal.submit(name, 1, new_stream(key=name.encode()))
            await journal.append("finished", 1, 1, frames_from(1, 0, 0), finish="stop")
        async with running(make_journal(LIMITS)) as journal:
            (claimed,) = await journal.recover()
            assert (claimed.session.session_id, claimed.session.epoch) == ("live", 2)
            assert claimed.session.released_ms is not None
            with pytest.raises(Fenced):
                await journal.append("live", 1, 1, frames_from(1, 0, 1))
            assert (await journal.claim_session("finished", "acme", TOKEN_HASH)).session.epoch == 2

    async def test_operations_on_no_session_say_so(self, make_journal: MakeJournal, mock_clock):
        """A session that is gone is not one that was taken over."""
        async with running(make_journal(LIMITS)) as journal:
            for operation in (
                partial(journal.adopt_session, "?"),
                partial(journal.release_session, "?", 1),
                partial(journal.record_message, "?", 1, 1),
                partial(journal.submit, "?", 1, new_stream()),
                partial(journal.append, "?", 1, 1, frames_from(1, 0, 1)),
                partial(journal.abandon, "?", 1, 1),
            ):
                with pytest.raises(SessionNotFound):
                    await operation()

    # ---- the client's messages

    async def test_messages_count_up_to_the_first_gap(self, make_journal: MakeJournal, mock_clock):
        """The client drops its copies up to the answer, so nothing that is missing may be below it."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            recorded = [await journal.record_message("s", 1, id_) for id_ in (1, 4, 3, 3, 1, 2, 7, 5, 6)]
        assert recorded == [1, 1, 1, 1, 1, 4, 4, 5, 7]

    async def test_early_messages_outlive_a_restart(self, make_journal: MakeJournal, mock_clock):
        """A message processed ahead of its turn isn't forgotten."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.record_message("s", 1, 2)
        async with running(make_journal(LIMITS)) as journal:
            assert await journal.record_message("s", 1, 1) == 2

    async def test_early_messages_are_bounded(self, make_journal: MakeJournal, mock_clock):
        """A client that never sends a message can't make the journal remember all that follow."""
        async with running(make_journal(evolve(LIMITS, early_messages=5))) as journal:
            await journal.create_session(new_session())
            for sequence_id in range(2, 2 + 5):
                await journal.record_message("s", 1, sequence_id)
            for operation in (
                partial(journal.record_message, "s", 1, 1_000),
                partial(journal.submit, "s", 1, new_stream(1_000)),
            ):
                with pytest.raises(TooManyEarlyMessages) as caught:
                    await operation()
                assert caught.value.missing_id == 1
            with pytest.raises(StreamNotFound):
                await journal.find_stream("s", 1)
            assert await journal.record_message("s", 1, 2) == 0
            assert await journal.record_message("s", 1, 1) == 1 + 5

    # ---- requests

    async def test_submit_starts_streams_in_order(self, make_journal: MakeJournal, mock_clock):
        """A request, its stream and its message are one transaction."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            first = await journal.submit("s", 1, new_stream(1))
            second = await journal.submit("s", 1, new_stream(2))
        assert [first.stream.stream_id, second.stream.stream_id] == [1, 2]
        assert not first.replayed
        assert (second.last_sequence_id, second.stream.next_frame_id) == (2, 1)

    async def test_submit_finds_its_stream_when_repeated(self, make_journal: MakeJournal, mock_clock):
        """One key, one stream, one charge: in the same message, in another one."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream(1, b"key"))
            await journal.append("s", 1, 1, frames_from(1, 0, 5))
            again = await journal.submit("s", 1, new_stream(1, b"key"))
            later = await journal.submit("s", 1, new_stream(2, b"key"))
            assert (await journal.submit("s", 1, new_stream(3))).stream.stream_id == 2
        for submission in (again, later):
            assert (submission.replayed, submission.moved_from) == (True, None)
            assert (submission.stream.session_id, submission.stream.stream_id) == ("s", 1)
            assert submission.stream.text_bytes == 5
        assert [s.last_sequence_id for s in (again, later)] == [1, 2]

    async def test_submit_refuses_a_key_of_another_request(self, make_journal: MakeJournal, mock_clock):
        """A key that stands for two requests would answer one with the other; nothing is written."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream(1, b"key"))
            with pytest.raises(IdempotencyMismatch):
                await journal.submit("s", 1, new_stream(2, b"key", fingerprint=b"other"))
            assert await journal.record_message("s", 1, 1) == 1

    async def test_keys_of_tenants_are_apart(self, make_journal: MakeJournal, mock_clock):
        """No tenant gets a byte of another's, whatever keys they choose."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session("s"))
            await journal.create_session(new_session("t", tenant="other"))
            await journal.submit("s", 1, new_stream(1, b"key"))
            submission = await journal.submit("t", 1, new_stream(1, b"key", fingerprint=b"other"))
        assert not submission.replayed
        assert submission.stream.session_id == "t"

    # ---- frames

    async def test_frames_come_back_as_they_were_written(self, make_journal: MakeJournal, mock_clock):
        """One (stream, id) has one content for ever, over a restart too."""
        written = frames_from(1, 0, 3, 0, 2_000)
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, written[:1])
            await journal.append("s", 1, 1, written[1:])
        async with running(make_journal(LIMITS)) as journal:
            page = await journal.read_frames("s", 1, 0, 10)
        assert list(page.frames) == written
        assert (page.record.last_id, page.record.text_bytes) == (3, 2_003)

    async def test_append_takes_the_next_frame_only(self, make_journal: MakeJournal, mock_clock):
        """Ids have no hole and no second content, and offsets add up."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 3, 4))
            for frames in (
                frames_from(2, 3, 4),
                frames_from(4, 7, 1),
                frames_from(3, 6, 1),
                frames_from(1, 0, 1),
            ):
                with pytest.raises(OutOfOrder) as caught:
                    await journal.append("s", 1, 1, frames)
                assert (caught.value.expected_id, caught.value.expected_offset) == (3, 7)
            await journal.append("s", 1, 1, frames_from(3, 7, 1))
            assert (await journal.find_stream("s", 1)).text_bytes == 8

    async def test_append_refuses_frames_that_do_not_follow_each_other(
        self, make_journal: MakeJournal, mock_clock
    ):
        """A wrong batch is the caller's bug, and nothing of it is written."""
        one, two, three = frames_from(1, 0, 1, 1, 1)
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            for frames in ([], [one, three], [one, one], [two, one], [one, *frames_from(2, 5, 1)]):
                with pytest.raises(ValueError, match="frame"):
                    await journal.append("s", 1, 1, frames)
            assert (await journal.find_stream("s", 1)).next_frame_id == 1

    async def test_appends_of_a_step_are_made_together_and_refused_alone(
        self, make_journal: MakeJournal, mock_clock
    ):
        """What is wrong with one stream's frames is told of that one, and the others are durable."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.create_session(new_session("other"))
            for sequence_id in (1, 2, 3):
                await journal.submit("s", 1, new_stream(sequence_id))
            await journal.submit("other", 1, new_stream(4))
            await journal.append("s", 1, 3, frames_from(1, 0, 0), finish="stop")
            errors = await journal.append_all(
                [
                    Append("s", 1, 1, frames_from(1, 0, 3)),
                    Append("other", 2, 1, frames_from(1, 0, 3)),
                    Append("s", 1, 2, frames_from(2, 3, 3)),
                    Append("s", 1, 3, frames_from(2, 0, 3)),
                    Append("s", 1, 1, frames_from(2, 3, 4)),
                    Append("other", 1, 1, []),
                    Append("other", 1, 1, frames_from(1, 0, 5)),
                ]
            )
            assert [type(error) for error in errors] == [
                *(type(None), Fenced, OutOfOrder, StreamEnded, type(None), ValueError, type(None))
            ]
            assert await journal.append_all([]) == []
        async with running(make_journal(LIMITS)) as journal:
            assert (await journal.find_stream("s", 1)).text_bytes == 7
            assert (await journal.find_stream("s", 2)).next_frame_id == 1
            assert (await journal.find_stream("other", 1)).text_bytes == 5

    async def test_nothing_follows_the_terminal_frame(self, make_journal: MakeJournal, mock_clock):
        """At most one terminal frame, the last; it and the end of the stream are one transaction."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 3, 0), finish="stop")
            for operation in (
                partial(journal.append, "s", 1, 1, frames_from(3, 3, 1)),
                partial(journal.append, "s", 1, 1, frames_from(3, 3, 0), finish="stop"),
                partial(journal.abandon, "s", 1, 1),
            ):
                with pytest.raises(StreamEnded):
                    await operation()
            record = await journal.find_stream("s", 1)
            assert len((await journal.read_frames("s", 1, 0, 10)).frames) == 2
        assert (record.state, record.finish, record.next_frame_id) == (StreamState.FINISHED, "stop", 3)

    async def test_abandoned_stream_keeps_its_frames(self, make_journal: MakeJournal, mock_clock):
        """A stream can end without a terminal frame; what was written stays readable."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 3))
            await journal.abandon("s", 1, 1)
            page = await journal.read_frames("s", 1, 0, 10)
            with pytest.raises(StreamEnded):
                await journal.append("s", 1, 1, frames_from(2, 3, 1))
        assert (page.record.state, len(page.frames)) == (StreamState.ABANDONED, 1)

    async def test_streams_do_not_touch_each_other(self, make_journal: MakeJournal, mock_clock):
        """Each stream has its own ids and its own end."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            for sequence_id in (1, 2):
                await journal.submit("s", 1, new_stream(sequence_id))
            await journal.append("s", 1, 2, frames_from(1, 0, 3))
            await journal.append("s", 1, 1, frames_from(1, 0, 0), finish="stop")
            await journal.append("s", 1, 2, frames_from(2, 3, 4))
            assert (await journal.find_stream("s", 2)).text_bytes == 7

    async def test_append_needs_a_stream(self, make_journal: MakeJournal, mock_clock):
        """A number that was never given is no stream."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            for operation in (
                partial(journal.append, "s", 1, 1, frames_from(1, 0, 1)),
                partial(journal.read_frames, "s", 1, 0, 1),
                partial(journal.read_frames, "?", 1, 0, 1),
                partial(journal.load_stream, "s", 0),
                partial(journal.find_stream, "s", 2),
            ):
                with pytest.raises(StreamNotFound):
                    await operation()

    # ---- reading

    async def test_pages_join_without_hole_or_overlap(self, make_journal: MakeJournal, mock_clock):
        """A replay is exactly what lies after the cursor, in order, to the tail."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, *[2] * 10))
            ids, after_id = [], 3
            while frames := (await journal.read_frames("s", 1, after_id, 3)).frames:
                ids.append([frame.id for frame in frames])
                after_id = frames[-1].id
        assert ids == [[4, 5, 6], [7, 8, 9], [10]]

    async def test_page_is_bounded_in_bytes(self, make_journal: MakeJournal, mock_clock):
        """A page of large frames is short, but never empty."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 100_000, 100_000, 100_000, 300_000))
            assert [f.id for f in (await journal.read_frames("s", 1, 0, 10)).frames] == [1, 2]
            assert [f.id for f in (await journal.read_frames("s", 1, 2, 10)).frames] == [3]
            assert [f.id for f in (await journal.read_frames("s", 1, 3, 10)).frames] == [4]

    async def test_cursor_beyond_the_tail_is_an_error(self, make_journal: MakeJournal, mock_clock):
        """A reader that has what was never written is told, with what there is."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.append("s", 1, 1, frames_from(1, 0, 1, 1))
            assert (await journal.read_frames("s", 1, 2, 10)).frames == ()
            with pytest.raises(CursorAhead) as caught:
                await journal.read_frames("s", 1, 3, 10)
        assert (caught.value.first_available_id, caught.value.last_id) == (1, 2)

    async def test_load_gives_all_that_a_takeover_needs(self, make_journal: MakeJournal, mock_clock):
        """Prompt, ids in order, seed, request and model come back exactly."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream(prompt_ids=(), request=b"\x00\xff", seed=-(2**63)))
            await journal.submit("s", 1, new_stream(2, prompt_ids=(0, 2**32 - 1), seed=2**63 - 1))
            await journal.append("s", 1, 2, frames_from(1, 0, 3, 4))
        async with running(make_journal(LIMITS)) as journal:
            first, second = [await journal.load_stream("s", stream_id) for stream_id in (1, 2)]
        assert (first.prompt_ids, first.token_ids, first.request, first.seed) == (
            (),
            (),
            b"\x00\xff",
            -(2**63),
        )
        assert (second.prompt_ids, second.token_ids) == ((0, 2**32 - 1), (1, 1_001, 2, 1_002))
        assert (second.seed, second.model_fingerprint, second.record.text_bytes) == (2**63 - 1, b"model", 7)

    # ---- its own life

    async def test_closed_journal_says_so(self, make_journal: MakeJournal, mock_clock):
        """Before `run` and after it nothing is written and nothing waits."""
        journal = make_journal(LIMITS)
        for _ in range(2):
            assert journal.trouble() is not None
            for operation in (
                partial(journal.create_session, new_session()),
                partial(journal.find_stream, "s", 1),
                journal.sweep,
            ):
                with pytest.raises(JournalClosed):
                    await operation()
            if journal.statistics().operations == 0:
                async with running(journal):
                    assert journal.trouble() is None
                    await journal.create_session(new_session("t"))

    async def test_cancelled_operation_wrote_nothing(self, make_journal: MakeJournal, mock_clock):
        """A cancellation means "not written", so the next append finds the stream where it was."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            with trio.CancelScope() as scope:
                scope.cancel()
                await journal.append("s", 1, 1, frames_from(1, 0, 1))
            assert scope.cancelled_caught
            await journal.append("s", 1, 1, frames_from(1, 0, 1))

"""What every journal must do; a subclass in a test file gives the journal."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

import pytest
import trio
from attrs import evolve

from seedance_server.journal.errors import (
    Fenced,
    IdempotencyMismatch,
    JournalClosed,
    SessionNotFound,
    StreamNotFound,
    TooManyEarlyMessages,
)
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import StreamState, Submission
from tests.server.journal.journal_made import (
    LIMITS,
    TOKEN_HASH,
    MakeJournal,
    frames_from,
    new_session,
    new_stream,
    running,
)

whose: ContextVar[int | None] = ContextVar("whose", default=None)


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
                partial(journal.note_attempt, "s", 1, 1),
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
                partial(journal.note_attempt, "?", 1, 1),
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

    async def test_submits_at_once_are_told_in_order(self, make_journal: MakeJournal, mock_clock):
        """Each in its caller's context, when it is durable; what one raises is its caller's."""
        told: list[tuple[int, int | None]] = []
        returned: dict[int, int] = {}

        async def submit(journal: Journal, number: int) -> None:
            whose.set(number)

            def committed(submission: Submission) -> None:
                assert number not in returned
                told.append((submission.stream.stream_id, whose.get()))
                if number == 7:
                    raise ZeroDivisionError

            if number == 7:
                with pytest.raises(ZeroDivisionError):
                    await journal.submit("s", 1, new_stream(number), committed)
                return
            submission = await journal.submit("s", 1, new_stream(number), committed)
            returned[number] = submission.stream.stream_id

        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            async with trio.open_nursery() as nursery:
                for number in range(1, 21):
                    nursery.start_soon(submit, journal, number)
            assert [stream_id for stream_id, _ in told] == list(range(1, 21))
            assert returned == {number: stream_id for stream_id, number in told if number != 7}
            assert (await journal.find_stream("s", 20)).state is StreamState.LIVE

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

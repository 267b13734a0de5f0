"""What every journal must do with frames; a subclass in a test file gives the journal."""

from __future__ import annotations

from functools import partial

import pytest

from seedance_server.journal.append import Append
from seedance_server.journal.errors import (
    CursorAhead,
    Fenced,
    OutOfOrder,
    StreamEnded,
    StreamNotFound,
)
from seedance_server.journal.records import StreamState
from tests.server.journal.journal_made import (
    LIMITS,
    MakeJournal,
    frames_from,
    new_session,
    new_stream,
    running,
)


class FrameConformance:
    """Subclasses define the fixture ``make_journal``, a `MakeJournal`; time stands still unless moved."""

    # ---- writing

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
                partial(journal.note_attempt, "s", 1, 1),
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

    async def test_attempts_count_while_a_stream_stays_where_it_is(
        self, make_journal: MakeJournal, mock_clock
    ):
        """Over restarts; a frame begins the count anew, and whoever left the stream is the first of it."""
        async with running(make_journal(LIMITS)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await journal.submit("s", 1, new_stream(2))
            assert [await journal.note_attempt("s", 1, 1) for _ in range(2)] == [2, 3]
        async with running(make_journal(LIMITS)) as journal:
            assert await journal.note_attempt("s", 1, 1) == 4
            assert await journal.note_attempt("s", 1, 2) == 2
            await journal.append("s", 1, 1, frames_from(1, 0, 1))
            assert (await journal.load_stream("s", 1)).attempts == 0
            assert [await journal.note_attempt("s", 1, 1) for _ in range(2)] == [2, 3]
            assert (await journal.load_stream("s", 1)).attempts == 3

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

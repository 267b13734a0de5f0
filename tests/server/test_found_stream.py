"""Tests of `seedance_server.found_stream`."""

from attrs import evolve

from seedance_server.found_stream import FoundStream, ResumeRefused, last_readable_id
from seedance_server.journal.records import StreamRecord, StreamState
from seedance_wire.messages import ResumeFailure


def test_found_stream_is_live_while_it_has_a_producer() -> None:
    """RESUMED says whether more is to come."""
    ended = FoundStream(source=None, stream=None, first_available_id=1, last_id=4)
    assert not ended.is_live
    assert FoundStream(source=None, stream=object(), first_available_id=1, last_id=4).is_live


def test_refused_resume_says_why_and_what_is_still_there() -> None:
    """The client decides by the code, and may begin at what is kept."""
    refusal = ResumeRefused(ResumeFailure.TRUNCATED, 7, 12)
    assert str(refusal) == "truncated"
    assert (refusal.first_available_id, refusal.last_id) == (7, 12)


def test_last_readable_frame_is_the_one_that_says_a_stream_was_given_up() -> None:
    """It isn't written, and yet a reader gets it."""
    record = StreamRecord(
        session_id="s",
        stream_id=1,
        tenant="t",
        state=StreamState.LIVE,
        first_available_id=1,
        next_frame_id=5,
        text_bytes=9,
        stored_bytes=9,
        created_ms=0,
        ended_ms=None,
        finish=None,
    )
    assert last_readable_id(record) == 4
    assert last_readable_id(evolve(record, state=StreamState.ABANDONED)) == 5

"""Tests of `seedance_server.found_stream`."""

from seedance_server.found_stream import FoundStream, ResumeRefused
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

"""Tests of `seedance_server.http.answers`: what stands in the way of an answer becomes one of its own."""

import pytest

from seedance_server.errors import RequestRefused, SessionLost
from seedance_server.found_stream import ResumeRefused
from seedance_server.http.answers import refusing
from seedance_server.http.holds import AnswerGone
from seedance_server.http.refusal import Refusal
from seedance_server.journal.errors import JournalOverloaded, SessionNotFound, StreamExpired
from seedance_wire.messages import ErrorCode, ResumeFailure


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestRefused(ErrorCode.RATE_LIMITED, "slow", retry_after_ms=1), 429, "rate_limit_exceeded"),
        (ResumeRefused(ResumeFailure.NOT_FOUND), 404, "not_found"),
        (ResumeRefused(ResumeFailure.EXPIRED), 410, "expired"),
        (ResumeRefused(ResumeFailure.TRUNCATED), 410, "truncated"),
        (ResumeRefused(ResumeFailure.CURSOR_AHEAD), 400, "invalid_cursor"),
        (ResumeRefused(ResumeFailure.FINGERPRINT_MISMATCH), 410, "fingerprint_mismatch"),
        (SessionNotFound(), 404, "not_found"),
        (AnswerGone(), 410, "expired"),
        (StreamExpired(1, 1, 0), 410, "expired"),
        (SessionLost(), 503, "overloaded"),
        (JournalOverloaded(1), 503, "overloaded"),
    ],
)
def test_answers_say_why_there_is_none(error: Exception, status: int, code: str) -> None:
    """What is final is never called worth a retry, and the other way round."""
    with pytest.raises(Refusal) as refused, refusing():
        raise error
    assert (refused.value.status, refused.value.code) == (status, code)
    assert (refused.value.retry_after_s is not None) == (status in {429, 503})

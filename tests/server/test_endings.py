"""Tests of `seedance_server.endings`."""

import pytest
import structlog

from seedance_server.endings import ending_of, record_of
from seedance_server.engine.errors import NumericalError
from seedance_server.errors import EngineStopped, RequestRefused, StreamGivenUp
from seedance_server.frame_draft import Ending, cancelled_final
from seedance_server.journal.errors import JournalFull, JournalOverloaded
from seedance_server.request_watch import Outcome
from seedance_wire.messages import ErrorCode


@pytest.mark.parametrize(
    ("error", "code", "retryable", "logged"),
    [
        (JournalFull(new_work=False), ErrorCode.JOURNAL_FULL, True, 0),
        (JournalOverloaded(5), ErrorCode.OVERLOADED, True, 0),
        (RequestRefused(ErrorCode.OVERLOADED, "try again", retry_after_ms=7), ErrorCode.OVERLOADED, True, 0),
        (NumericalError("NaN"), ErrorCode.NUMERICAL_ERROR, False, 0),
        (EngineStopped("DeviceFailed"), ErrorCode.ENGINE_FAILED, True, 0),
        (StreamGivenUp(3), ErrorCode.ENGINE_FAILED, False, 0),
        (ZeroDivisionError(), ErrorCode.INTERNAL, False, 1),
    ],
)
def test_ending_says_what_went_wrong_and_logs_what_nobody_expected(error, code, retryable, logged) -> None:
    """A bug is told to the log with its traceback, all else is told to the client alone."""
    with structlog.testing.capture_logs() as said:
        ending = ending_of(error)
    assert (ending.code, ending.retryable) == (code, retryable)
    assert ending.retry_after_ms == getattr(error, "retry_after_ms", None)
    assert [line["exc_info"] for line in said] == [error] * logged


def test_end_is_recorded_by_its_word_and_its_outcome() -> None:
    """Journal and metrics name one end alike."""
    assert record_of(cancelled_final(3, 2)) == ("cancelled", Outcome.ABORT, None)
    error = Ending(ErrorCode.OVERLOADED, "try again", retryable=True)
    assert record_of(error) == ("overloaded", Outcome.ERROR, ErrorCode.OVERLOADED)

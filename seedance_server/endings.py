"""How a stream ends: what its readers are told of an error, and what journal and metrics call an end.

It must not know streams, frames or journals as they are: only what they raise.
"""

from __future__ import annotations

import structlog

from seedance_server.engine.errors import EngineError
from seedance_server.errors import EngineStopped, RequestRefused, StreamGivenUp
from seedance_server.frame_draft import Ending
from seedance_server.journal.errors import JournalFull, JournalOverloaded
from seedance_server.refusals import describe_failure
from seedance_server.request_watch import Outcome
from seedance_wire.messages import ErrorCode, Final, FinishReason

__all__ = ["ending_of", "record_of"]

_log = structlog.get_logger(__name__)

_OUTCOMES = {
    FinishReason.STOP: Outcome.STOP,
    FinishReason.LENGTH: Outcome.LENGTH,
    FinishReason.CANCELLED: Outcome.ABORT,
}


def ending_of(error: Exception) -> Ending:
    """What readers are told; an error that nobody expected is told to the log, with where it came from."""
    if isinstance(error, JournalFull):
        return Ending(ErrorCode.JOURNAL_FULL, "there is no room to keep the answer", retryable=True)
    if isinstance(error, JournalOverloaded):
        return Ending(ErrorCode.OVERLOADED, "the answer can't be kept fast enough", retryable=True)
    if isinstance(error, RequestRefused):
        return Ending(error.code, error.reason, retryable=True, retry_after_ms=error.retry_after_ms)
    if not isinstance(error, EngineError | EngineStopped | StreamGivenUp):
        _log.error("stream failed", exc_info=error)
    return Ending(*describe_failure(error))


def record_of(ending: Final | Ending) -> tuple[str, Outcome, ErrorCode | None]:
    """What the journal calls an end, and what the metrics: an outcome and, of an error, its code."""
    if isinstance(ending, Final):
        return ending.finish_reason.value, _OUTCOMES[ending.finish_reason], None
    return ending.code.value, Outcome.ERROR, ending.code

"""How a stream ends of what went wrong with it: an error becomes the last thing that its readers are told.

It must not know streams, frames or journals as they are: only what they raise.
"""

from __future__ import annotations

import structlog

from seedance_server.engine.errors import EngineError
from seedance_server.errors import EngineStopped, RequestRefused, StreamGivenUp
from seedance_server.frame_draft import Ending
from seedance_server.journal.errors import JournalFull, JournalOverloaded
from seedance_server.refusals import describe_failure
from seedance_wire.messages import ErrorCode

__all__ = ["ending_of"]

_log = structlog.get_logger(__name__)


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

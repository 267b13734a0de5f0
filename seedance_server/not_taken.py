"""What a client is told whose request the journal didn't take.

It must not know how a request is kept.
"""

from __future__ import annotations

from seedance_server.errors import RequestRefused
from seedance_server.journal.errors import (
    IdempotencyMismatch,
    JournalFull,
    JournalOverloaded,
    RequestInUse,
    TenantQuotaExceeded,
)
from seedance_server.refusals import RETRY_SOON_MS
from seedance_wire.messages import ErrorCode

__all__ = ["NotTaken", "not_taken"]

NotTaken = (IdempotencyMismatch, JournalFull, JournalOverloaded, RequestInUse, TenantQuotaExceeded)
"""The errors that are this one request's affair."""


def not_taken(error: Exception) -> RequestRefused:
    """The refusal that one of `NotTaken` becomes."""
    if isinstance(error, IdempotencyMismatch):
        return RequestRefused(ErrorCode.IDEMPOTENCY_MISMATCH, str(error), field="idempotency_key")
    if isinstance(error, RequestInUse):
        return RequestRefused(
            ErrorCode.OVERLOADED, str(error), field="idempotency_key", retry_after_ms=RETRY_SOON_MS
        )
    if isinstance(error, JournalOverloaded):
        return RequestRefused(
            ErrorCode.OVERLOADED, "requests can't be kept fast enough", retry_after_ms=RETRY_SOON_MS
        )
    return RequestRefused(
        ErrorCode.JOURNAL_FULL, "there is no room to keep the answer", retry_after_ms=RETRY_SOON_MS
    )

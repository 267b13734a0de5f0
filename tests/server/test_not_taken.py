"""Tests of `seedance_server.not_taken`."""

import pytest

from seedance_server.journal.errors import (
    IdempotencyMismatch,
    JournalFull,
    JournalOverloaded,
    RequestInUse,
    TenantQuotaExceeded,
)
from seedance_server.not_taken import NotTaken, not_taken
from seedance_wire.messages import ErrorCode


@pytest.mark.parametrize(
    ("error", "code", "is_worth_a_retry"),
    [
        (IdempotencyMismatch(), ErrorCode.IDEMPOTENCY_MISMATCH, False),
        (RequestInUse(), ErrorCode.OVERLOADED, True),
        (JournalOverloaded(1.0), ErrorCode.OVERLOADED, True),
        (JournalFull(new_work=True), ErrorCode.JOURNAL_FULL, True),
        (TenantQuotaExceeded("acme", 1, 2), ErrorCode.JOURNAL_FULL, True),
    ],
)
def test_request_that_was_not_taken_is_refused_with_its_reason(error, code, is_worth_a_retry) -> None:
    """Each says what it is, and whether to try again."""
    assert isinstance(error, NotTaken)
    refusal = not_taken(error)
    assert refusal.code is code
    assert (refusal.retry_after_ms is not None) is is_worth_a_retry

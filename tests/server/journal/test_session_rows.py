"""Sessions in SQLite, beside the conformance suite: the token is compared, never looked up by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance_server.journal import session_rows
from seedance_server.journal.errors import SessionNotFound
from seedance_server.journal.schema import open_writer
from seedance_server.journal.transaction import Transaction
from tests.server.journal.journal_made import LIMITS, TOKEN_HASH, new_session


@pytest.fixture
def transaction(tmp_path: Path) -> Iterator[Transaction]:
    db = open_writer(tmp_path / "journal.db", LIMITS)
    yield Transaction(db, 7, LIMITS, lambda: False)
    db.close()


def test_claim_compares_both_whatever_the_first_says(transaction: Transaction, monkeypatch):
    """One timing: an unknown session, a foreign one and a wrong token cost the same comparisons."""
    compared = []
    compare = session_rows.compare_digest
    monkeypatch.setattr(session_rows, "compare_digest", lambda a, b: compared.append(len(b)) or compare(a, b))
    session_rows.create_session(transaction, new_session())
    for session_id, tenant, token_hash in (
        ("?", "acme", TOKEN_HASH),
        ("s", "evil", TOKEN_HASH),
        ("s", "acme", bytes(32)),
    ):
        with pytest.raises(SessionNotFound):
            session_rows.claim_session(transaction, session_id, tenant, token_hash)
    assert compared == [4, 32] * 3


def test_empty_hash_of_an_unknown_session_claims_nothing(transaction: Transaction):
    """What an unknown session is compared with is no key to it."""
    with pytest.raises(SessionNotFound):
        session_rows.claim_session(transaction, "?", "", bytes(32))


def test_tenant_with_any_characters_is_compared(transaction: Transaction):
    """A tenant's name isn't always ASCII."""
    session_rows.create_session(transaction, new_session(tenant="Ünïcode"))
    assert session_rows.claim_session(transaction, "s", "Ünïcode", TOKEN_HASH).session.epoch == 2

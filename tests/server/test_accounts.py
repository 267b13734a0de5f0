"""Tests of `seedance_server.accounts`."""

from seedance_server.accounts import Accounts
from seedance_server.tenants import Tenant


def test_account_outlives_the_record_that_it_is_held_to() -> None:
    """Another record changes the limits, not what is used."""
    accounts = Accounts([Tenant(name="a", max_connections=1, max_streams=2)])
    account = accounts.of("a")
    account.connections, account.requests = 1, 1
    assert not account.has_room_for_connection
    assert account.has_room_for_request
    accounts.update([Tenant(name="a", max_connections=2, max_streams=1)])
    assert accounts.of("a") is account
    assert account.has_room_for_connection
    assert not account.has_room_for_request


def test_account_of_a_tenant_that_nobody_wrote_down_has_no_limits() -> None:
    """Its key is gone, but what it has goes on."""
    accounts = Accounts([])
    accounts.of("gone").requests = 10_000
    assert accounts.of("gone").has_room_for_request
    assert [account.tenant.name for account in accounts] == ["gone"]


def test_journal_bytes_are_seen_where_they_were_handed_to() -> None:
    """The journal looks at them again each time."""
    accounts = Accounts([Tenant(name="a", journal_bytes=5), Tenant(name="b")])
    seen = accounts.journal_bytes
    assert dict(seen) == {"a": 5}
    accounts.update([Tenant(name="a"), Tenant(name="b", journal_bytes=6)])
    assert dict(seen) == {"b": 6}

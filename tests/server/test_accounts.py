"""Tests of `seedance_server.accounts`."""

import pytest

from seedance_server.accounts import Account, Accounts
from seedance_server.quota import Load
from seedance_server.tenants import Rate, Tenant


def test_account_outlives_the_record_that_it_is_held_to() -> None:
    """Another record changes the limits, not what is used."""
    accounts = Accounts([Tenant(name="a", max_connections=1, max_streams=2)], lambda: 0.0)
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
    accounts = Accounts([], lambda: 0.0)
    accounts.of("gone").requests = 10_000
    assert accounts.of("gone").has_room_for_request
    assert [account.tenant.name for account in accounts] == ["gone"]


def test_journal_bytes_are_seen_where_they_were_handed_to() -> None:
    """The journal looks at them again each time."""
    accounts = Accounts([Tenant(name="a", journal_bytes=5), Tenant(name="b")], lambda: 0.0)
    seen = accounts.journal_bytes
    assert dict(seen) == {"a": 5}
    accounts.update([Tenant(name="a"), Tenant(name="b", journal_bytes=6)])
    assert dict(seen) == {"b": 6}


def test_account_gives_tokens_back_that_were_not_used() -> None:
    """max_tokens is a bound, not a bill; what was used beyond it is owed."""
    now_s = 0.0
    accounts = Accounts([Tenant(name="a", tokens_per_minute=Rate.of(600))], lambda: now_s)
    account = accounts.of("a")
    assert account.take_tokens(500) == 0
    assert account.take_tokens(200) == pytest.approx(10)
    account.settle_tokens(500, 100)
    assert account.take_tokens(500) == 0
    account.settle_tokens(500, 560)
    assert account.take_tokens(1) == pytest.approx(6.1)
    now_s = 7.0
    assert account.take_tokens(1) == 0


def test_account_without_a_rate_takes_what_it_likes() -> None:
    """And begins to count with the rate, not before."""
    accounts = Accounts([Tenant(name="a")], lambda: 0.0)
    account = accounts.of("a")
    assert account.take_tokens(10**9) == 0
    account.charge_bytes(10**9)
    assert account.bandwidth_wait_s() == 0
    assert account.quotas == (None, None)
    accounts.update([Tenant(name="a", bytes_per_second=Rate.of(100))])
    assert account.bandwidth_wait_s() == 0
    account.charge_bytes(300)
    assert account.bandwidth_wait_s() == pytest.approx(2)


def test_quotas_of_all_accounts_move_with_the_load() -> None:
    """Also of one that is opened later."""
    accounts = Accounts([Tenant(name="a", tokens_per_minute=Rate.of(100))], lambda: 0.0)
    accounts.note_load(Load(cpu=0.2, net=0.7))
    accounts.update([Tenant(name="b", bytes_per_second=Rate(80, 0, 90))])
    assert accounts.of("a").quotas == (135, None)
    assert accounts.of("b").quotas == (None, 90)


def test_account_gives_events_back_that_were_not_kept() -> None:
    """A minute's worth at once, then as they come; what was refused later counts for nothing."""
    now = [0.0]
    account = Account(Tenant(name="a", events_per_minute=Rate(60, 60, 60)), lambda: now[0])
    assert account.take_events(60) == 0
    assert account.take_events(2) == pytest.approx(2)
    account.give_events_back(2)
    assert account.take_events(2) == 0
    now[0] = 30.0
    assert account.take_events(30) == 0
    assert account.take_events(1) == pytest.approx(1)

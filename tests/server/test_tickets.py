"""Tickets open one connection, soon, for whoever showed the key."""

from __future__ import annotations

from itertools import count

from seedance_server.tickets import LIFETIME_S, Tickets


class Clock:
    """Seconds that pass when they are told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_ticket_gives_what_it_was_issued_for_once():
    """A ticket is used up by its first use."""
    tickets = Tickets[str](clock=Clock())
    ticket = tickets.issue("acme", "a pass")
    assert tickets.redeem(ticket) == "a pass"
    assert tickets.redeem(ticket) is None
    assert len(tickets) == 0


def test_ticket_opens_nothing_when_it_is_too_old():
    """Half a minute, and not a moment more."""
    clock = Clock()
    tickets = Tickets[str](clock=clock)
    early, late = tickets.issue("acme", "early"), tickets.issue("acme", "late")
    clock.now_s = LIFETIME_S - 0.001
    assert tickets.redeem(early) == "early"
    clock.now_s = LIFETIME_S
    assert tickets.redeem(late) is None
    assert len(tickets) == 0


def test_old_tickets_are_forgotten_when_their_owner_fetches_another():
    """What nobody uses does not stay."""
    clock = Clock()
    tickets = Tickets[str](clock=clock)
    for _ in range(5):
        tickets.issue("acme", "a pass")
    clock.now_s = LIFETIME_S
    tickets.issue("acme", "a pass")
    assert len(tickets) == 1


def test_owner_loses_his_own_oldest_ticket_when_he_fetches_too_many():
    """Memory is bounded for each owner, and nobody can push out another's ticket."""
    numbers = count()
    tickets = Tickets[int](clock=Clock(), make_secret=lambda: f"ticket-{next(numbers)}")
    other = tickets.issue("other", -1)
    mine = [tickets.issue("acme", number) for number in range(257)]
    assert len(tickets) == 257
    assert tickets.redeem(mine[0]) is None
    assert [tickets.redeem(ticket) for ticket in mine[1:]] == list(range(1, 257))
    assert tickets.redeem(other) == -1


def test_ticket_can_stand_among_subprotocols():
    """It is a token of HTTP's grammar, and long enough that nobody guesses it."""
    ticket = Tickets[int](clock=Clock()).issue("acme", 1)
    assert len(ticket) >= 43
    assert all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in ticket)


def test_unknown_ticket_opens_nothing():
    """Whatever was made up is refused."""
    tickets = Tickets[int](clock=Clock())
    tickets.issue("acme", 1)
    assert tickets.redeem("") is None
    assert tickets.redeem("acme") is None

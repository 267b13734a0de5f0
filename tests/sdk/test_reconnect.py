"""Reconnecting as a decision: which ends are final, how long the waits are, and when patience is over."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given

from seedance_sdk.causes import error_of_close, error_of_status
from seedance_sdk.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionFailed,
    Diverged,
    ProtocolError,
    SeedanceError,
)
from seedance_sdk.reconnect import (
    CLOSE_REACTIONS,
    Outage,
    Reaction,
    ReconnectDetails,
    full_jitter,
    is_failure,
    reaction_to,
)
from seedance_wire.closing import CLOSE_RULES
from seedance_wire.errors import CloseCode
from tests.strategies import dice_rolls, outages

CUT = error_of_close(1006, "")

# The protocol's table of close codes, row by row.
ROWS = {
    Reaction.MOVE: [1001, 4001],
    Reaction.RESUME: [1000, 1005, 1006, 1015, 1011, 1012, 4408, 4413, 4412],
    Reaction.WAIT: [1013, 4429],
    Reaction.RAISE: [1002, 1003, 1007, 4400, 1008, 4401, 4403, 4409, 4410],
    Reaction.SHED: [1009],
}


@pytest.mark.parametrize(
    ("code", "reaction"), [(code, reaction) for reaction, codes in ROWS.items() for code in codes]
)
def test_close_code_has_the_reaction_of_the_protocol(code: int, reaction: Reaction) -> None:
    """The table is the protocol's, whatever words come with the code."""
    assert reaction_to(error_of_close(code, "why")) is reaction


@pytest.mark.parametrize("code", CloseCode)
def test_close_code_is_treated_as_the_specification_advises(code: CloseCode) -> None:
    """What others are told to do is what this client does."""
    rule, error = CLOSE_RULES[code], error_of_close(code, "")
    assert (reaction_to(error).name, is_failure(error)) == (rule.advice.name, rule.is_failure)


def test_close_codes_are_all_in_the_table() -> None:
    """A code that is added to the protocol needs a decision here."""
    assert set(CLOSE_REACTIONS) == set(CloseCode)
    assert sorted(CLOSE_REACTIONS) == sorted(code for codes in ROWS.values() for code in codes)


@pytest.mark.parametrize("code", [1004, 1010, 1014, 2999, 3000, 4000, 4999])
def test_close_code_that_nobody_knows_is_a_cut(code: int) -> None:
    """Proxies close with codes of their own; the session behind them is still there."""
    assert reaction_to(error_of_close(code, "")) is Reaction.RESUME


@pytest.mark.parametrize(
    ("status", "reaction"),
    [
        (400, Reaction.RAISE),
        (401, Reaction.RAISE),
        (403, Reaction.RAISE),
        (404, Reaction.RAISE),
        (408, Reaction.RESUME),
        (425, Reaction.RESUME),
        (429, Reaction.WAIT),
        (500, Reaction.RESUME),
        (502, Reaction.RESUME),
        (503, Reaction.WAIT),
        (504, Reaction.RESUME),
    ],
)
def test_status_of_a_refused_upgrade_has_its_reaction(status: int, reaction: Reaction) -> None:
    """What a proxy says while its server restarts passes; what is wrong with the request does not."""
    assert reaction_to(error_of_status(status, "", None)) is reaction


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ConnectFailed("refused"), Reaction.RESUME),
        (ConnectFailed("wrong certificate", retryable=False), Reaction.RAISE),
        (ProtocolError("no WebSocket frames", close_code=1002), Reaction.RAISE),
        (ProtocolError("a flood of pings", close_code=1006), Reaction.RAISE),
        (ProtocolError("a message over 1000 bytes", close_code=1009), Reaction.RAISE),
        (ClientClosed("closed"), Reaction.RAISE),
        (Diverged("another text", close_code=4400), Reaction.RESUME),
    ],
)
def test_failure_of_this_side_has_its_reaction(error: SeedanceError, reaction: Reaction) -> None:
    """A server that broke the protocol would break it again, whatever code this side closed with."""
    assert reaction_to(error) is reaction


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        *((error_of_close(code, ""), True) for code in (1005, 1006, 1011, 1012, 1015, 3000)),
        *(
            (error_of_close(code, ""), False)
            for code in (1000, 1001, 1009, 1013, 4001, 4408, 4409, 4412, 4429)
        ),
        *((error_of_status(status, "", None), True) for status in (500, 502, 504)),
        *((error_of_status(status, "", None), False) for status in (401, 408, 425, 429, 503)),
        (ConnectFailed("refused"), True),
        (ConnectFailed("wrong certificate", retryable=False), False),
        (ProtocolError("no frames", close_code=1002), False),
        (Diverged("another text", close_code=4400), False),
        (ClientClosed("closed"), False),
    ],
)
def test_end_of_a_connection_counts_against_its_endpoint_only_where_that_is_away(
    error: SeedanceError, counts: bool
) -> None:
    """A server that says goodbye, sheds load or parts with one client is there."""
    assert is_failure(error) is counts


def test_outage_is_given_up_where_the_circuit_stays_open_for_longer_than_is_left() -> None:
    """The breaker's pause is a least wait, the jitter comes on top; one that ends too late is the end."""
    outage = Outage(60, dice=lambda: 1.0)
    found = outage.next_attempt(CUT, 0, streams=1, at_least_s=16)
    assert found is not None
    assert found.wait_for_s == 16.25
    assert outage.next_attempt(CUT, 31, streams=1, at_least_s=30) is None


def test_full_jitter_spreads_from_zero_to_a_doubling_ceiling() -> None:
    """The largest waits double up to the cap and stay there; the smallest are zero."""
    assert list(islice(full_jitter(dice=lambda: 1.0), 8)) == [0.25, 0.5, 1, 2, 4, 8, 10, 10]
    assert set(islice(full_jitter(dice=lambda: 0.0), 100)) == {0.0}
    assert list(islice(full_jitter(base_s=3, cap_s=5, dice=lambda: 0.5), 3)) == [1.5, 2.5, 2.5]


def test_full_jitter_goes_on_for_ever() -> None:
    """A ceiling that doubled without end would overflow after a thousand attempts."""
    assert max(islice(full_jitter(dice=lambda: 1.0), 5000)) == 10


def details(outage: Outage, error: SeedanceError, now_s: float) -> ReconnectDetails:
    found = outage.next_attempt(error, now_s, streams=1)
    assert found is not None
    return found


def test_outage_counts_attempts_until_progress_is_made() -> None:
    """A server that greets and hangs up gets longer and longer waits; one that works gets a fresh start."""
    outage = Outage(60, dice=lambda: 1.0)
    waits = []
    for number in range(4):
        waits.append(details(outage, CUT, 100 * number).wait_for_s)
        outage.note_welcome()
    assert waits == [0.25, 0.5, 1, 2]
    outage.note_progress()
    first = details(outage, CUT, 1000)
    assert (first.attempt, first.wait_for_s, first.waited_so_far_s, first.caused_by) == (1, 0.25, 0, CUT)


def test_outage_is_given_up_after_its_time_and_not_before() -> None:
    """Attempts go on to the end of the time, the last ones closer together, and then stop."""
    outage = Outage(60, dice=lambda: 1.0)
    now_s = 5.0
    while (found := outage.next_attempt(CUT, now_s, streams=1)) is not None:
        assert outage.deadline(now_s) == 65
        assert found.waited_so_far_s == now_s - 5
        now_s += found.wait_for_s
    assert 64.8 <= now_s < 65
    assert found is None


def test_outage_time_starts_over_with_the_next_loss() -> None:
    """The bound is on one outage, not on all of them together."""
    outage = Outage(60, dice=lambda: 0.0)
    details(outage, CUT, 0)
    details(outage, CUT, 59)
    outage.note_welcome()
    assert details(outage, CUT, 200).waited_so_far_s == 0
    assert outage.next_attempt(CUT, 260, streams=1) is None


def test_outage_waits_as_long_as_an_overloaded_server_asks() -> None:
    """``retry_after`` is a least wait, with the jitter on top; without one it is a second."""
    busy = error_of_status(503, "", 7000)
    assert details(Outage(60, dice=lambda: 1.0), busy, 0).wait_for_s == 7.25
    assert details(Outage(60, dice=lambda: 0.0), busy, 0).wait_for_s == 7
    assert details(Outage(60, dice=lambda: 1.0), error_of_close(1013, ""), 0).wait_for_s == 1.25


def test_outage_is_given_up_at_once_where_the_server_asks_for_more_than_is_left() -> None:
    """Waiting a minute for a server that said an hour helps nobody."""
    assert Outage(60).next_attempt(error_of_status(503, "", 3_600_000), 0, streams=1) is None
    assert Outage(60).next_attempt(error_of_status(429, "", 60_000), 0, streams=1) is None


def test_outage_moves_at_once_when_the_server_leaves_in_order() -> None:
    """Half a second spreads the crowd; a second goodbye in a row is treated as a failure."""
    outage = Outage(60, dice=lambda: 0.8)
    assert details(outage, error_of_close(1001, ""), 0).wait_for_s == 0.4
    outage.note_welcome()
    assert details(outage, error_of_close(4001, ""), 1).wait_for_s == pytest.approx(0.4)
    outage.note_welcome()
    assert details(outage, error_of_close(4001, ""), 2).wait_for_s == pytest.approx(0.8)


@pytest.mark.parametrize("error", [ClientClosed("closed"), error_of_close(4409, ""), ProtocolError("no")])
def test_outage_gives_up_at_once_what_is_final(error: ConnectionFailed) -> None:
    """No attempt is made where the answer is known."""
    assert Outage(60).next_attempt(error, 0, streams=1) is None


@given(causes=outages, roll=dice_rolls)
def test_outage_never_outlasts_its_time_nor_undercuts_the_server(
    causes: list[tuple[int, int | None]], roll: float
) -> None:
    """Whatever goes wrong in whatever order: bounded in time and in attempts, ``retry_after`` honoured."""
    outage = Outage(60, dice=lambda: roll)
    now_s = 0.0
    for number, retry_after_ms in causes:
        error = error_of_close(number, "") if number > 1000 else error_of_status(number, "", retry_after_ms)
        found = outage.next_attempt(error, now_s, streams=1)
        if found is None:
            break
        if reaction_to(error) is Reaction.WAIT:
            assert found.wait_for_s >= (error.retry_after_ms or 0) / 1000
        now_s += found.wait_for_s + 0.3  # an attempt takes a moment
        assert now_s <= 60.3
    else:
        pytest.fail("it went on")

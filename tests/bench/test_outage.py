"""A crowd of clients through an outage: spread, bounded, and nothing lost."""

from __future__ import annotations

import pytest

from outage import Outage, Result, run

CLIENTS = 80  # the benchmark has 200; these show the same in less time


@pytest.fixture(scope="module")
def result() -> Result:
    return run(Outage(clients=CLIENTS))


@pytest.mark.slow  # many clients, a minute of outage
def test_crowd_comes_back_spread_over_time(result: Result) -> None:
    """Full jitter: no second after the first sees a crowd, whether the server is away or back.

    The first second has the first attempts of all, at random within a quarter and half a second; behind a
    circuit that all opened together they would come at the same moment for ever.
    """
    first, *later = result.per_second(120)
    assert first <= 2 * CLIENTS
    assert max(later) <= 0.7 * CLIENTS
    assert max(later[9:]) <= 0.3 * CLIENTS
    assert len(result.attempts_s) <= 12 * CLIENTS


@pytest.mark.slow
def test_crowd_loses_nothing_and_is_back_soon(result: Result) -> None:
    """Each stream comes whole; nobody waits longer than the longest pause after the server is well."""
    assert result.whole == CLIENTS
    assert max(result.resumed_s) <= 60 + 30 + 10


@pytest.mark.slow
def test_overload_is_asked_for_no_more_than_it_can_bear(result: Result) -> None:
    """A server that closes for overload is asked about once in five seconds by each client, and no more."""
    overloaded = sum(result.per_second(60)[30:])
    assert overloaded / 30 <= CLIENTS / 5

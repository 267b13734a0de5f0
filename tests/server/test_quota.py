"""Tests of `seedance_server.quota`."""

import math

import pytest

from seedance_server.quota import Load, Quota, dynamic_quota
from seedance_server.tenants import Rate


@pytest.mark.parametrize(("base", "load", "expected"), [(100, 0.70, 135), (80, 0.30, 92), (50, 0.20, 55)])
def test_quota_is_what_the_formula_says(base: float, load: float, expected: float) -> None:
    """S25's three checks, whichever of the two is busier."""
    assert dynamic_quota(Rate.of(base), Load(cpu=load)) == pytest.approx(expected)
    assert dynamic_quota(Rate.of(base), Load(cpu=load / 2, net=load)) == pytest.approx(expected)


def test_quota_stays_within_its_bounds() -> None:
    """Below the least it is lifted, above the most it is cut; a wild reading counts as idle or full."""
    assert dynamic_quota(Rate(100, 120, 130), Load()) == 120
    assert dynamic_quota(Rate(100, 120, 130), Load(cpu=1)) == 130
    assert dynamic_quota(Rate.of(100), Load(cpu=7)) == 150
    assert dynamic_quota(Rate.of(100), Load(cpu=-7, net=-1)) == 100
    assert dynamic_quota(Rate.of(100), Load(cpu=math.nan)) == 100


def test_quota_lets_a_period_go_at_once_then_its_rate() -> None:
    """A minute's tokens in the first second, then so many a second."""
    quota = Quota(period_s=60)
    quota.hold_to(Rate.of(600), 0.0)
    assert quota.take(600, 0.0) == 0
    assert quota.take(10, 0.0) == pytest.approx(1)
    assert quota.take(10, 1.0) == 0
    assert quota.current == 600


def test_quota_under_load_fills_faster_and_holds_more() -> None:
    """The new rate counts from the moment of the reading."""
    quota = Quota(period_s=1)
    quota.hold_to(Rate.of(100), 0.0)
    assert quota.take(100, 0.0) == 0
    quota.note_load(Load(net=1), 0.0)
    assert quota.current == 150
    assert quota.take(150, 1.0) == 0
    quota.note_load(Load(), 1.0)
    assert quota.take(100, 2.0) == 0
    assert quota.take(1, 2.0) > 0


def test_quota_that_is_taken_away_gives_everything() -> None:
    """No rate, no limit; a new one begins with a full period."""
    quota = Quota(period_s=1)
    quota.hold_to(Rate.of(1), 0.0)
    quota.charge(100, 0.0)
    assert quota.debt_s(0.0) == pytest.approx(99)
    quota.hold_to(None, 0.0)
    assert quota.debt_s(0.0) == quota.take(10**9, 0.0) == 0
    quota.hold_to(Rate.of(1), 0.0)
    assert quota.take(1, 0.0) == 0

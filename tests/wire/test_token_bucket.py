"""Tests of `seedance_wire.token_bucket`."""

import pytest

from seedance_wire.token_bucket import TokenBucket


def test_bucket_allows_a_burst_then_the_rate_when_time_passes() -> None:
    """So many at once, so many a second after that, never more saved than the burst."""
    bucket = TokenBucket(rate=2, burst=3, now_s=0)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.5), bucket.take(0.5)] == [True, False]
    assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("rate", [0.3, 7.0, 45.0, 1e3])
def test_bucket_has_one_when_the_wait_is_over(rate: float) -> None:
    """Who waits as long as it says, whatever is rounded, takes one and only one."""
    bucket, now_s = TokenBucket(rate, 1, 1e5), 1e5
    for _ in range(100):
        assert bucket.take(now_s)
        assert not bucket.take(now_s)
        wait_s = bucket.wait_s(now_s)
        assert wait_s == pytest.approx(1 / rate, rel=1e-3)
        now_s += wait_s


def test_bucket_takes_amounts_and_gives_back_what_was_not_used() -> None:
    """Never more than the burst is saved, however much comes back."""
    bucket = TokenBucket(rate=10, burst=100, now_s=0)
    assert bucket.take(0, 80)
    assert not bucket.take(0, 30)
    assert bucket.wait_s(0, 30) == pytest.approx(1)
    bucket.charge(0, -30)
    assert bucket.take(0, 50)
    bucket.charge(0, -1000)
    assert bucket.take(0, 100)
    assert not bucket.take(0, 1)


def test_bucket_owes_what_is_larger_than_itself() -> None:
    """An amount above the burst waits for a full bucket, not for ever, and the next one waits longer."""
    bucket = TokenBucket(rate=10, burst=100, now_s=0)
    assert bucket.take(0, 1)
    assert not bucket.take(0, 500)
    assert bucket.wait_s(0, 500) == pytest.approx(0.1)
    assert bucket.take(0.1, 500)
    assert bucket.wait_s(0.1, 0) == pytest.approx(40)
    assert bucket.wait_s(0.1, 1) == pytest.approx(40.1)
    bucket.charge(40.1, 5)
    assert bucket.wait_s(40.1, 0) == pytest.approx(0.5)


def test_bucket_goes_on_at_another_rate() -> None:
    """What came before counts at the old rate; a smaller burst holds less."""
    bucket = TokenBucket(rate=10, burst=100, now_s=0)
    assert bucket.take(0, 100)
    bucket.change(1, rate=1, burst=5)
    assert bucket.take(1, 5)
    assert bucket.wait_s(1, 5) == pytest.approx(5)

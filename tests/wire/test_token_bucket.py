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

"""Tests of `seedance_server.token_bucket`."""

from seedance_server.token_bucket import TokenBucket


def test_bucket_allows_a_burst_then_the_rate_when_time_passes() -> None:
    """So many at once, so many a second after that, never more saved than the burst."""
    bucket = TokenBucket(rate=2, burst=3, now_s=0)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.5), bucket.take(0.5)] == [True, False]
    assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]

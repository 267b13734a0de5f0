"""Tests of `seedance_server.distribution`."""

import math

from seedance_server.distribution import Distribution


def test_distribution_counts_a_value_at_each_bound_that_it_does_not_exceed() -> None:
    """A value at a bound is within it, one beyond all is counted as well."""
    subject = Distribution((0.1, 0.2, 0.4))
    assert subject.buckets == ((0.1, 0), (0.2, 0), (0.4, 0), (math.inf, 0))
    for value in (0.05, 0.1, 0.15, 0.4, 7.0):
        subject.add(value)
    assert subject.buckets == ((0.1, 2), (0.2, 3), (0.4, 4), (math.inf, 5))
    assert subject.sum == 0.05 + 0.1 + 0.15 + 0.4 + 7.0

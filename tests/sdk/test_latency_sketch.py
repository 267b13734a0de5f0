"""The sketch's promise: quantiles within one percent, in bounded memory, whatever the durations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_sdk.latency_sketch import BUFFERED, MAX_BUCKETS, LatencySketch
from tests.strategies import durations

SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def sketch_of(values: Sequence[float]) -> LatencySketch:
    sketch = LatencySketch((0.005, 0.020, 0.050))
    for value in values:
        sketch.add(value)
    return sketch


def exact(values: Sequence[float], share: float) -> float:
    """The value that occurred, such that this share of all is no longer: nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def assert_within_one_percent(sketch: LatencySketch, values: Sequence[float]) -> None:
    for share in SHARES:
        told, true = sketch.quantile(share), exact(values, share)
        assert told is not None
        assert abs(told - true) <= 0.00999 * true, (share, told, true)


@given(st.lists(durations, min_size=1, max_size=60))
def test_quantiles_are_within_one_percent_for_any_durations(values: list[float]) -> None:
    """S32: a relative error below one percent, from one value on."""
    assert_within_one_percent(sketch_of(values), values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda dice: dice.paretovariate(0.5) * 1e-3,
        lambda dice: dice.lognormvariate(-4, 3),
        lambda dice: dice.expovariate(30) if dice.random() < 0.99 else 30 * dice.paretovariate(1),
    ],
    ids=["pareto", "lognormal", "mixture"],
)
def test_quantiles_are_within_one_percent_of_a_heavy_tail(draw: Callable[[random.Random], float]) -> None:
    """Also of many values, whose longest are a million times their median."""
    dice = random.Random(7)
    values = [draw(dice) for _ in range(20_000)]
    assert_within_one_percent(sketch_of(values), values)


@given(st.lists(st.lists(durations, max_size=20), min_size=1, max_size=4).filter(any))
def test_merged_sketches_are_as_good_as_one_of_everything(parts: list[list[float]]) -> None:
    """Endpoints are summed up together, and each stays as it was."""
    sketches = [sketch_of(part) for part in parts]
    whole = LatencySketch((0.005, 0.020, 0.050))
    for sketch in sketches:
        whole.merge(sketch)
    values = [value for part in parts for value in part]
    assert_within_one_percent(whole, values)
    assert whole.bucket_counts == sketch_of_settled(values).bucket_counts
    assert [sketch.distribution().count for sketch in sketches] == [len(part) for part in parts]


def sketch_of_settled(values: Sequence[float]) -> LatencySketch:
    sketch = sketch_of(values)
    sketch.settle()
    return sketch


def test_memory_is_bounded_and_a_tail_beyond_all_bounds_keeps_its_quantiles() -> None:
    """Where values span more than 2,048 buckets, the shortest become one bucket, and P99 is as good."""
    dice = random.Random(3)
    values = [10.0 ** dice.uniform(-30, 6) for _ in range(5_000)]
    sketch = sketch_of(values)
    assert len(sketch._waiting) < BUFFERED
    for share in (0.9, 0.99, 1.0):
        told = sketch.quantile(share)
        assert told is not None
        assert abs(told - exact(values, share)) <= 0.00999 * exact(values, share)
    assert sketch._sketch._store.length() <= MAX_BUCKETS


def test_distribution_has_exact_ends_and_mean() -> None:
    """Only what lies between is estimated."""
    figures = sketch_of([0.001, 0.002, 0.009]).distribution()
    assert (figures.count, figures.min_ms, figures.max_ms) == (3, 1.0, 9.0)
    assert figures.mean_ms == pytest.approx(4.0)
    assert figures.p50_ms == pytest.approx(2.0, rel=0.01)


def test_distribution_of_nothing_has_no_times() -> None:
    """None is no time at all; zero would be one."""
    figures = LatencySketch().distribution()
    assert figures.count == 0
    assert figures.p99_ms is None
    assert LatencySketch().quantile(0.5) is None


def test_zeros_count_like_any_other_duration() -> None:
    """Tokens that arrive together have gaps of zero, and there may be many."""
    sketch = sketch_of([0.010])
    sketch.add_zeros(9)
    figures = sketch.distribution()
    assert (figures.count, figures.min_ms, figures.p50_ms, figures.max_ms) == (10, 0.0, 0.0, 10.0)
    assert sketch.bucket_counts == [9, 1, 0, 0]


def test_a_bucket_begins_with_its_bound() -> None:
    """[0, 5), [5, 20), [20, 50), [50, …) ms."""
    assert sketch_of_settled([0.0, 0.0049, 0.005, 0.0199, 0.020, 0.050, 9.0]).bucket_counts == [2, 2, 1, 2]

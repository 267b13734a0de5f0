"""From rounds to medians, ratios and verdicts."""

from __future__ import annotations

import attrs
import pytest

from engine.comparison import Measured, Spread, Target, from_json, ratio, spread, verdicts


def rows(peer: str, values: dict[int, float], figure: str = "tokens_per_s") -> list[Measured]:
    return [Measured(peer, "burst", 8, number, {figure: value}) for number, value in values.items()]


def test_spread_is_the_median_and_its_surroundings() -> None:
    """One slow round moves the least, not the median."""
    assert spread(rows("ours", {1: 10.0, 2: 3.0, 3: 11.0}), "ours", "burst", 8, "tokens_per_s") == Spread(
        10.0, 3.0, 11.0, 3
    )


def test_spread_is_none_when_nothing_was_measured() -> None:
    """What isn't measured has no figure."""
    measured = rows("ours", {1: 10.0})
    assert spread(measured, "vllm", "burst", 8, "tokens_per_s") is None
    assert spread(measured, "ours", "burst", 1, "tokens_per_s") is None
    assert spread(measured, "ours", "burst", 8, "itl_p50_ms") is None


def test_ratio_compares_within_a_round() -> None:
    """A minute in which everything is slow is no difference between engines."""
    measured = [*rows("ours", {1: 100.0, 2: 10.0}), *rows("vllm", {1: 50.0, 2: 5.0, 3: 900.0})]
    assert ratio(measured, "vllm", "burst", 8, "tokens_per_s") == Spread(2.0, 2.0, 2.0, 2)


def test_ratio_is_none_when_no_round_has_both() -> None:
    """Figures of different rounds are not put over each other."""
    measured = [*rows("ours", {1: 100.0}), *rows("vllm", {2: 50.0})]
    assert ratio(measured, "vllm", "burst", 8, "tokens_per_s") is None


@pytest.mark.parametrize(("ours", "met"), [(1.0, True), (0.99, False)])
def test_verdict_holds_the_median_to_the_bound(ours: float, met: bool) -> None:
    """A target is met at its bound, and missed just below it."""
    target = Target("t", "vllm", "burst", 8, "tokens_per_s", least=1.0)
    (verdict,) = verdicts([*rows("ours", {1: ours}), *rows("vllm", {1: 1.0})], [target])
    assert verdict.met is met


def test_verdict_holds_a_bound_from_above() -> None:
    """Latencies are bounded the other way round."""
    target = Target("t", "", "burst", 8, "itl_p50_ms", most=2.5)
    assert verdicts(rows("ours", {1: 2.6}, "itl_p50_ms"), [target])[0].met is False
    assert verdicts(rows("ours", {1: 2.4}, "itl_p50_ms"), [target])[0].met is True


def test_verdict_is_open_when_the_peer_is_absent() -> None:
    """Nothing is claimed against an engine that wasn't there."""
    assert {verdict.met for verdict in verdicts(rows("ours", {1: 1.0}))} == {None}


def test_measurements_survive_their_record() -> None:
    """Rounds of an earlier run are gone on with."""
    measured = rows("ours", {1: 1.0, 2: 2.0})
    assert from_json([attrs.asdict(each) for each in measured]) == measured

"""Weighted rendezvous hashing: minimal disruption, and shares as the weights are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from seedance_sdk.rendezvous import ranking
from tests.strategies import member_weights, texts


@given(texts, member_weights, st.data())
def test_a_member_that_leaves_changes_nothing_among_the_others(
    key: str, weights: dict[str, float], data: st.DataObject
) -> None:
    """Only its own keys move, each to its second choice."""
    leaver = data.draw(st.sampled_from(sorted(weights)))
    before = ranking(key, weights)
    without = ranking(key, {member: weight for member, weight in weights.items() if member != leaver})
    assert without == [member for member in before if member != leaver]


@given(texts, member_weights, st.data())
def test_a_member_that_grows_only_gains(key: str, weights: dict[str, float], data: st.DataObject) -> None:
    """A weight that rises takes keys from others, and moves none between them."""
    grown = data.draw(st.sampled_from(sorted(weights)))
    before = ranking(key, weights)
    after = ranking(key, {**weights, grown: 2 * weights[grown]})
    assert after.index(grown) <= before.index(grown)
    assert [each for each in after if each != grown] == [each for each in before if each != grown]


@given(texts, member_weights)
def test_order_of_members_and_process_do_not_matter(key: str, weights: dict[str, float]) -> None:
    """Everybody who knows the same members agrees."""
    assert ranking(key, weights) == ranking(key, dict(reversed(weights.items())))


def test_shares_are_as_the_weights_are() -> None:
    """Of 20,000 keys, within a twentieth: five standard deviations of the smallest share."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    firsts = Counter(ranking(str(number), weights)[0] for number in range(20_000))
    for member, weight in weights.items():
        expected = 20_000 * weight / 8
        assert abs(firsts[member] - expected) < 0.1 * expected
    # When b leaves, its keys are shared among the others as their weights are.
    moved = Counter(
        ranking(str(number), {"a": 1.0, "c": 5.0})[0]
        for number in range(20_000)
        if ranking(str(number), weights)[0] == "b"
    )
    assert abs(moved["c"] - 5 * moved["a"]) < 0.15 * moved["c"]


def test_hash_is_the_same_in_every_process_and_version() -> None:
    """Python's own hash differs from process to process; this order is a promise to whoever runs two."""
    orders = ["".join(ranking(key, dict.fromkeys("abcd", 1.0))) for key in ("", "user-1", "ключ")]
    assert orders == ["dabc", "abcd", "abdc"]

"""Who is measured when."""

from __future__ import annotations

from engine.run import order


def test_order_lets_each_engine_go_first_in_turn() -> None:
    """None always follows the same one onto a machine that it has warmed."""
    assert [order(["a", "b", "c"], number) for number in range(3)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]

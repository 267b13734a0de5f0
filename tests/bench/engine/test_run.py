"""Who is measured when."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.comparison import Measured
from engine.engine_process import EngineProcess, attached
from engine.measurement import MeasurementFailed
from engine.peers import PEERS
from engine.run import Plan, Results, order, take


def test_order_lets_each_engine_go_first_in_turn() -> None:
    """None always follows the same one onto a machine that it has warmed."""
    assert [order(["a", "b", "c"], number) for number in range(3)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]


@pytest.mark.parametrize("every_level", [False, True])
def test_plan_leaves_slow_peers_out_where_no_target_names_them(every_level: bool) -> None:
    """Unless all levels are asked for: what isn't needed for a verdict takes most of the time."""
    plan = Plan(
        model=Path("model"),
        cores=[0],
        levels=[1, 32],
        arrival_levels=[],
        texts=[],
        arrival_rate=1.0,
        rounds=1,
        first_round=1,
        prompt_tokens=60,
        max_tokens=48,
        attachments={},
        every_level=every_level,
    )
    assert plan.includes(PEERS["transformers"], 32)
    assert plan.includes(PEERS["transformers"], 1) is every_level
    assert plan.includes(PEERS["vllm"], 1)


async def test_peer_that_fails_at_a_level_leaves_the_rest_of_the_run_alone() -> None:
    """It has no figures there, and that is written down; ours may not fail."""
    results = Results()

    async def fail(_engine: EngineProcess) -> Measured:
        raise MeasurementFailed("too many")

    assert await take(fail, attached(PEERS["transformers"], 1, 1), results) == "FAILED: too many"
    assert results.failures == ["Transformers CB: too many"]
    assert not results.measured
    with pytest.raises(MeasurementFailed):
        await take(fail, attached(PEERS["plain"], 1, 1), results)

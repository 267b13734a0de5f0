"""Tests of `seedance_server.fair_turns`."""

import trio
import trio.testing

from seedance_server.fair_turns import FairTurns


async def test_a_tenant_with_many_in_line_delays_another_by_one_turn(autojump_clock) -> None:
    """Each tenant has its own line; the lines take turns, each in its order."""
    turns, order = FairTurns(2), []

    async def take(tenant: str, number: int) -> None:
        async with turns.turn(tenant):
            order.append((tenant, number, trio.current_time()))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(take, "greedy", number)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.5)
        for number in range(2):
            nursery.start_soon(take, "modest", number)
            await trio.testing.wait_all_tasks_blocked()
        assert turns.waiting == 8
    began_s = {(tenant, number): time_s for tenant, number, time_s in order}
    assert [began_s["modest", number] for number in range(2)] == [1, 2]
    assert [began_s["greedy", number] for number in range(8)] == [0, 0, 1, 2, 3, 3, 4, 4]
    assert trio.current_time() == 5
    assert turns.waiting == 0


async def test_whoever_gives_up_takes_no_turn_along(autojump_clock) -> None:
    """Neither while in line nor in the moment in which its turn comes."""
    turns = FairTurns(1)

    async def hold(seconds: float) -> None:
        async with turns.turn("a"):
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, 10)
        await trio.testing.wait_all_tasks_blocked()
        for patience_s in (1, 10):
            with trio.move_on_at(trio.current_time() + patience_s):
                async with turns.turn("b"):
                    await trio.sleep(50)
    assert turns.waiting == 0
    with trio.fail_after(0.1):
        await hold(0)
        await hold(0)

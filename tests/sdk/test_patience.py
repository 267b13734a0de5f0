"""One timer for all waits of a client: each ends when it should, and none before."""

from __future__ import annotations

import math

import trio
import trio.testing

from seedance_sdk.patience import Patience


class Wait:
    """Ends at a time that may be put off."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.ended_at: float | None = None
        self.asked = 0

    def expire(self, now: float) -> float:
        self.asked += 1
        if now < self.until:
            return self.until
        self.ended_at = now
        return math.inf


async def test_patience_ends_each_wait_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    """Whichever was begun first, and whether the timer ran by then."""
    patience, began = Patience(), trio.current_time()
    waits = [Wait(began + seconds) for seconds in (5, 2, 9)]
    patience.watch(waits[0], waits[0].until)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.run)
        await trio.testing.wait_all_tasks_blocked()
        for wait in waits[1:]:
            patience.watch(wait, wait.until)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert [wait.ended_at for wait in waits] == [began + 5, began + 2, began + 9]
    assert not len(patience)


async def test_patience_rings_once_for_many_waits_that_ended(autojump_clock: trio.testing.MockClock) -> None:
    """A wait that begins later than another sets no timer; what nobody waits for is let go of."""
    patience, began = Patience(), trio.current_time()
    wait = Wait(began + 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.run)
        for second in range(9):
            wait.until = began + second + 10
            patience.watch(wait, wait.until)
            await trio.sleep(1)
        assert wait.asked == 0
        await trio.sleep(2)
        assert wait.asked == 1
        patience.forget(wait)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert wait.asked == 1
    assert wait.ended_at is None

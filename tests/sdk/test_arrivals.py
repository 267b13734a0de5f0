"""What arrives goes to one reader each, in order; none waits longer than it said, and none loses anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from seedance_sdk.arrivals import Arrivals
from seedance_sdk.patience import Patience


@asynccontextmanager
async def timed() -> AsyncIterator[Arrivals[int]]:
    patience = Patience()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.run)
        yield Arrivals(patience)
        nursery.cancel_scope.cancel()


async def test_arrivals_go_to_whoever_has_waited_longest() -> None:
    """Readers take turns, and what nobody waits for stays in order."""
    arrivals: Arrivals[int] = Arrivals(Patience())
    taken: list[tuple[str, int]] = []

    async def read(name: str) -> None:
        taken.append((name, await arrivals.take()))

    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            nursery.start_soon(read, name)
            await trio.testing.wait_all_tasks_blocked()
        for item in range(4):
            arrivals.put(item)
    assert sorted(taken) == [("first", 0), ("second", 1)]
    assert len(arrivals) == 2
    assert [await arrivals.take(), await arrivals.take()] == [2, 3]


async def test_arrivals_end_a_wait_at_its_time_and_no_other(autojump_clock: trio.testing.MockClock) -> None:
    """Each reader has a time of its own; one that gave up is handed nothing."""
    async with timed() as arrivals:
        began = trio.current_time()

        async def give_up(seconds: float) -> None:
            with pytest.raises(trio.TooSlowError):
                await arrivals.take(began + seconds)
            assert trio.current_time() == began + seconds

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up, 3)
            nursery.start_soon(give_up, 1)
            await trio.sleep(5)
            arrivals.put(7)
        assert await arrivals.take(began + 6) == 7


async def test_arrivals_keep_what_a_cancelled_reader_did_not_take(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whether it waited, or was cancelled before it could take what was there."""
    async with timed() as arrivals:
        with trio.move_on_after(1):
            await arrivals.take(trio.current_time() + 9)
        arrivals.put(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await arrivals.take()
        assert await arrivals.take() == 1


async def test_arrivals_that_ended_are_taken_first() -> None:
    """The end is told to all who wait, and to all who ask later, each time, behind what is there."""
    arrivals: Arrivals[int] = Arrivals(Patience())
    told = 0

    async def read() -> None:
        nonlocal told
        with pytest.raises(trio.EndOfChannel):
            await arrivals.take()
        told += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        arrivals.end()
        arrivals.end()
    await read()
    assert told == 3
    arrivals = Arrivals(Patience())
    arrivals.put(5)
    arrivals.end()
    assert await arrivals.take() == 5
    await read()


async def test_arrivals_closed_return_what_was_left_and_wake_readers() -> None:
    """Nothing that was buffered is lost sight of, and nobody waits for more."""
    arrivals: Arrivals[int] = Arrivals(Patience())

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await arrivals.take()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert arrivals.close() == []
    await read()
    arrivals = Arrivals(Patience())
    arrivals.put(1)
    arrivals.put(2)
    assert arrivals.close() == [1, 2]
    assert arrivals.close() == []


async def test_arrivals_are_a_checkpoint_whatever_they_return() -> None:
    """A reader that is never kept waiting lets other tasks run."""
    arrivals: Arrivals[int] = Arrivals(Patience())
    arrivals.put(1)
    with trio.testing.assert_checkpoints():
        await arrivals.take()
    arrivals.end()
    with trio.testing.assert_checkpoints(), pytest.raises(trio.EndOfChannel):
        await arrivals.take()

"""Tests of `seedance_server.inline_executor`."""

import pytest
import trio

from seedance_server.inline_executor import InlineExecutor


async def test_functions_take_their_time_one_after_the_other(autojump_clock) -> None:
    """As on a thread: the next one begins when the one before it ends, even if nobody looks."""
    executor = InlineExecutor(5)
    begun = []
    jobs = [executor.submit(lambda: begun.append(trio.current_time())) for _ in range(3)]
    assert begun == [0]
    await jobs[0].wait()
    assert begun == [0, 5]
    await trio.sleep(1)
    await jobs[1].wait()
    await jobs[2].wait()
    assert trio.current_time() == pytest.approx(15)
    assert begun == [0, 5, 10]


async def test_call_returns_or_raises_what_the_function_does(autojump_clock) -> None:
    """Many may call at once."""
    executor = InlineExecutor(1)
    results = {}

    async def call(number: int) -> None:
        results[number] = await executor.call(lambda: number * number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, number)
    assert results == {number: number * number for number in range(5)}
    assert trio.current_time() == pytest.approx(5)
    with pytest.raises(ZeroDivisionError):
        await executor.call(lambda: 1 / 0)


async def test_an_abandoned_call_is_left_at_once(autojump_clock) -> None:
    """Any other waits for its function, as one does for a thread."""
    executor = InlineExecutor(10)
    for abandon, expected_s in ((True, 1), (False, 11)):
        with trio.move_on_after(1):
            await executor.call(lambda: None, abandon_on_cancel=abandon)
        assert trio.current_time() == pytest.approx(expected_s)

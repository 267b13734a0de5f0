"""Tests of `seedance_server.decode_thread`."""

import threading
from pathlib import Path

import pytest
import trio

from seedance_server.decode_thread import DecodeThread


@pytest.fixture
async def thread():
    thread = DecodeThread()
    thread.start()
    yield thread
    with trio.CancelScope(shield=True):
        assert await thread.stop(5)


async def test_all_calls_run_on_one_thread_that_is_not_the_loops(thread) -> None:
    """One thread owns PyTorch; results and errors come back to whoever asked."""
    idents = {await thread.call(threading.get_ident) for _ in range(3)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents

    def fail() -> None:
        raise LookupError("from the thread")

    with pytest.raises(LookupError, match="from the thread"):
        await thread.call(fail)
    assert await thread.call(lambda: 7) == 7


@pytest.mark.skipif(not Path("/proc/thread-self").exists(), reason="Linux shows it so")
async def test_the_system_knows_the_thread_by_its_name(thread) -> None:
    """``top -H`` is how an operator sees whose time it is; 15 characters are what there is room for."""
    assert await thread.call(Path("/proc/thread-self/comm").read_text) == "seedance-decode\n"


async def test_a_cancellation_takes_effect_after_the_function(thread) -> None:
    """A step isn't abandoned: nobody may touch the engine while it runs."""
    may_end, ended = threading.Event(), []

    def work() -> None:
        may_end.wait(5)
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.call, work)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
        may_end.set()
    assert ended


async def test_a_load_can_be_abandoned(thread) -> None:
    """Nobody waits for a model that isn't wanted any more; the thread goes on by itself."""
    may_end = threading.Event()
    with trio.move_on_after(0.02) as scope:
        await thread.call(lambda: may_end.wait(5), abandon_on_cancel=True)
    assert scope.cancelled_caught
    may_end.set()
    assert await thread.call(lambda: 1) == 1


async def test_a_call_in_a_cancelled_scope_runs_nothing(thread) -> None:
    """Cancelled before it began: not begun."""
    ran = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await thread.call(lambda: ran.append(1))
    await thread.call(lambda: None)
    assert ran == []


async def test_stop_says_whether_the_thread_ended_in_time() -> None:
    """A hanging model can't hold up the shutdown, and stopping is safe to repeat."""
    thread = DecodeThread()
    assert await thread.stop(0)  # never started
    thread = DecodeThread()
    thread.start()
    may_end = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.call, lambda: may_end.wait(5))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not await thread.stop(0.01)
        may_end.set()
    assert await thread.stop(5)
    assert not thread.is_alive


async def test_many_tasks_may_call_at_once(thread) -> None:
    """Calls queue; each gets its own result."""
    results = {}

    async def one(number: int) -> None:
        results[number] = await thread.call(lambda: number * number)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert results == {number: number * number for number in range(50)}

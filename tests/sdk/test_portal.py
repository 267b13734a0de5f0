"""The background thread: calls, interrupts, and every kind of end, all bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio

from seedance_sdk.errors import ClientClosed
from seedance_sdk.portal import Portal


class Resource:
    """Counts what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[Resource]:
        self.events.append("entered")
        try:
            yield self
        finally:
            self.events.append("left")


@pytest.fixture
def resource() -> Resource:
    return Resource()


@pytest.fixture
def portal(resource: Resource) -> Iterator[Portal[Resource]]:
    made = Portal(resource.entered(), close_timeout_s=10)
    yield made
    made.close()


async def nothing(_: Resource) -> None:
    """The shortest call."""
    await trio.lowlevel.checkpoint()


class Interrupted(BaseException):
    """What a signal handler raises here, as Ctrl-C raises KeyboardInterrupt."""


@contextmanager
def interrupting(ready: threading.Event) -> Iterator[None]:
    """Interrupts this thread by a signal once ``ready`` is set."""

    def handler(*_: object) -> None:
        raise Interrupted

    def kick() -> None:
        ready.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=kick)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_portal_returns_and_raises_what_the_call_does(portal: Portal[Resource]) -> None:
    """A call is a call, whatever thread it runs in."""

    async def value(resource: Resource) -> Resource:
        await trio.lowlevel.checkpoint()
        return resource

    async def error(_: Resource) -> None:
        raise LookupError("mine")

    assert portal.call(value) is portal.call(value)
    with pytest.raises(LookupError, match="mine"):
        portal.call(error)


def test_portal_starts_its_thread_at_the_first_call(portal: Portal[Resource], resource: Resource) -> None:
    """A client that is never used costs nothing."""
    assert resource.events == []
    portal.call(nothing)
    assert resource.events == ["entered"]


def test_portal_serves_many_threads_at_once(portal: Portal[Resource]) -> None:
    """Calls overlap: the last to come wakes the first."""
    count = 20
    arrived: list[int] = []
    all_here: list[trio.Event] = []

    async def meet(_: Resource) -> int:
        if not all_here:
            all_here.append(trio.Event())
        arrived.append(len(arrived))
        if len(arrived) == count:
            all_here[0].set()
        await all_here[0].wait()
        return len(arrived)

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(portal.call(meet))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [count] * count


def test_portal_interrupted_caller_takes_its_call_along(portal: Portal[Resource]) -> None:
    """The interrupt goes on at once; the call is cancelled and its owner told, in the background."""
    waiting = threading.Event()
    told = threading.Event()
    cancelled = threading.Event()

    async def wait(_: Resource) -> None:
        waiting.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with interrupting(waiting), pytest.raises(Interrupted):
        portal.call(wait, interrupted=told.set)
    assert cancelled.wait(10)
    assert told.wait(10)
    portal.call(nothing)


def test_portal_close_leaves_the_resource_and_wakes_callers(
    portal: Portal[Resource], resource: Resource
) -> None:
    """Nobody is left waiting by a close, and nothing runs after it."""
    waiting = threading.Event()
    errors: list[Exception] = []

    async def wait(_: Resource) -> None:
        waiting.set()
        await trio.sleep_forever()

    def caller() -> None:
        try:
            portal.call(wait)
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=caller)
    thread.start()
    assert waiting.wait(10)
    portal.close()
    portal.close()
    thread.join(10)
    assert len(errors) == 1
    assert resource.events == ["entered", "left"]
    assert not portal._host.thread.is_alive()
    with pytest.raises(ClientClosed):
        portal.call(nothing)


def test_portal_never_used_closes() -> None:
    """There is no thread to end."""
    portal = Portal(Resource().entered(), close_timeout_s=10)
    portal.close()
    with pytest.raises(ClientClosed):
        portal.call(nothing)


def test_portal_dropped_ends_its_thread(resource: Resource) -> None:
    """A client that nobody holds leaves no thread behind."""
    portal = Portal(resource.entered(), close_timeout_s=10)
    portal.call(nothing)
    thread = portal._host.thread
    gone = weakref.ref(portal)
    del portal
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()
    assert resource.events == ["entered", "left"]


def test_portal_called_from_its_own_thread_is_refused(portal: Portal[Resource]) -> None:
    """It would wait for itself for ever."""

    async def recurse(_: Resource) -> None:
        portal.call(nothing)

    with pytest.raises(RuntimeError, match="its own background thread"):
        portal.call(recurse)


def test_portal_after_a_fork_says_so(portal: Portal[Resource], monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has no thread: a call there is refused instead of waiting for ever."""
    portal.call(nothing)
    here = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: here + 1)
        with pytest.raises(ClientClosed, match="fork"):
            portal.call(nothing)
        portal.close()


@pytest.mark.parametrize("post", [True, False])
def test_portal_outlived_by_nothing(resource: Resource, post: bool) -> None:
    """After the thread's end a post is dropped, and a call refused."""
    portal = Portal(resource.entered(), close_timeout_s=10)
    portal.call(nothing)
    portal._host.post(portal._host.stop.set)
    portal._host.thread.join(10)
    action: Callable[[], object] = (
        (lambda: portal.post(lambda: None)) if post else (lambda: portal.call(nothing))
    )
    if post:
        action()
    else:
        with pytest.raises(ClientClosed):
            action()


def test_portal_call_that_arrives_while_it_closes_is_refused() -> None:
    """A call may cross with a close at any moment; it is refused, and the close goes on."""
    leaving = threading.Event()
    leave = trio.Event()

    @asynccontextmanager
    async def slow_to_leave() -> AsyncIterator[Resource]:
        yield Resource()
        leaving.set()
        await leave.wait()

    portal = Portal(slow_to_leave(), close_timeout_s=10)
    portal.call(nothing)
    portal._host.post(portal._host.stop.set)
    assert leaving.wait(10)
    threading.Timer(0.05, portal._host.post, (leave.set,)).start()
    with pytest.raises(ClientClosed):
        portal.call(nothing)
    portal.close()
    assert not portal._host.thread.is_alive()


def test_portal_whose_thread_cannot_begin_fails_and_can_be_tried_again(
    portal: Portal[Resource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process out of threads hears of it; neither that call nor the close waits for what never began."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def answer(_resource: Resource) -> int:
        return 42

    done = threading.Event()

    def call() -> None:
        with pytest.raises(RuntimeError, match="can't start"):
            portal.call(answer)
        portal.post(done.clear)
        done.set()

    caller = threading.Thread(target=call, daemon=True)  # a call that waits for ever must not hold the test
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    start(caller)
    assert done.wait(10)
    monkeypatch.undo()
    assert portal.call(answer) == 42


# ---- from asyncio


def test_portal_serves_asyncio_tasks_while_their_loop_goes_on(portal: Portal[Resource]) -> None:
    """A call that waits holds up neither other tasks nor other calls."""

    async def main() -> None:
        opened = trio.Event()

        async def wait(_: Resource) -> str:
            await opened.wait()
            return "woken"

        async def wake(_: Resource) -> None:
            opened.set()

        waiting = asyncio.create_task(portal.call_from_asyncio(wait))
        await asyncio.sleep(0)
        await portal.call_from_asyncio(wake)
        assert await waiting == "woken"
        with pytest.raises(LookupError, match="mine"):
            await portal.call_from_asyncio(fail)

    async def fail(_: Resource) -> None:
        raise LookupError("mine")

    portal.start()
    asyncio.run(main())


def test_portal_cancelled_task_waits_until_its_call_has_ended(portal: Portal[Resource]) -> None:
    """What asyncio cancels is cancelled on trio, clean-up included, before the task goes on."""
    steps: list[str] = []

    async def wait(_: Resource) -> None:
        steps.append("waits")
        try:
            await trio.sleep_forever()
        finally:
            steps.append("ended")

    async def main() -> None:
        task = asyncio.create_task(portal.call_from_asyncio(wait))
        while not steps:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.append("cancelled")

    portal.start()
    asyncio.run(main())
    assert steps == ["waits", "ended", "cancelled"]


def test_portal_task_cancelled_too_late_has_its_result_undone(portal: Portal[Resource]) -> None:
    """A result on its way to a task that is cancelled meanwhile is given back, not lost."""
    undone: list[int] = []

    async def main() -> None:
        reached = threading.Event()

        async def answer(_: Resource) -> int:
            await trio.lowlevel.checkpoint()
            reached.set()
            return 7

        task = asyncio.create_task(portal.call_from_asyncio(answer, undo=undone.append))
        await asyncio.sleep(0)
        assert reached.wait(10)  # asyncio's loop stands still, so the result can't have arrived
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    portal.start()
    asyncio.run(main())
    assert undone == [7]


def test_portal_closed_under_a_waiting_task_ends_its_call(portal: Portal[Resource]) -> None:
    """Nobody waits for a thread that is gone."""

    async def main() -> None:
        task = asyncio.create_task(portal.call_from_asyncio(forever))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(portal.close)
        with pytest.raises(ClientClosed):
            await task
        with pytest.raises(ClientClosed):
            await portal.call_from_asyncio(nothing)

    async def forever(_: Resource) -> None:
        await trio.sleep_forever()

    portal.start()
    asyncio.run(main())


def test_portal_reads_in_its_thread_and_here_once_that_is_gone(portal: Portal[Resource]) -> None:
    """What is read of a stream can be read after the client was closed, too."""
    here = threading.get_ident()
    assert portal.read(threading.get_ident) == here  # there is no thread yet
    portal.start()
    assert portal.read(threading.get_ident) != here
    with pytest.raises(LookupError):
        portal.read(lambda: {}["nothing"])
    portal.close()
    assert portal.read(threading.get_ident) == here

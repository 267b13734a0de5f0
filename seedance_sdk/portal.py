"""A background thread that runs trio and one async resource, for callers in any thread and on asyncio.

Calls go over in order, each answer to whoever asked. A thread that is interrupted, by Ctrl-C or by whatever
a signal handler raises, takes its call with it and waits for nothing; an asyncio task that is cancelled waits
until its call has ended. Every end is bounded: `Portal.close`, the exit of the process, and a fork, after
which the thread is not there. Must not know what it runs.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

import outcome
import trio

from seedance_sdk.errors import ClientClosed

__all__ = ["Portal"]

T = TypeVar("T")
R = TypeVar("R")

# Some platforms run signal handlers only between waits; elsewhere a waiter that wakes once a second costs
# nothing.
_WAIT_S = 1.0


class Portal(Generic[R]):
    """Runs a resource in a thread of its own, from the first call until `close`.

    Resource handling: close it; one that is dropped closes by itself, and so does every one at the process's
    exit.

    Args:
        resource: Entered and left in the background thread. It must not refer to the portal.
        close_timeout_s: How long `close` and the process's exit wait for the thread.
    """

    def __init__(self, resource: AbstractAsyncContextManager[R], *, close_timeout_s: float) -> None:
        self._close_timeout_s = close_timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._host = _Host(resource)
        _portals.add(self)

    def start(self) -> None:
        """Has the thread run, and returns as soon as it takes calls.

        Raises:
            ClientClosed: The portal is closed.
        """
        self._check()
        self._host.wait_until_ready()

    def call(
        self, function: Callable[[R], Awaitable[T]], *, interrupted: Callable[[], object] | None = None
    ) -> T:
        """Runs ``function(resource)`` in the background, and returns or raises what it does.

        Args:
            function: Called and awaited in the background thread.
            interrupted: Called there too, if an exception in the calling thread ends the wait.

        Raises:
            ClientClosed: The portal is closed, or was closed meanwhile.
            RuntimeError: Called from the background thread itself.
        """
        self._check()
        ended = threading.Event()
        call: _Call[R, T] = _Call(function, ended.set)
        try:
            if self._host.post(lambda: self._host.begin(call)):
                while not ended.wait(_WAIT_S):
                    pass
        except BaseException:
            self._host.post(call.scope.cancel)
            if interrupted is not None:
                self._host.post(interrupted)
            raise
        return call.result()

    async def call_from_asyncio(
        self,
        function: Callable[[R], Awaitable[T]],
        *,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """Does what `call` does, for a task on asyncio, whose loop goes on meanwhile.

        Args:
            function: Called and awaited in the background thread.
            undo: Called there with the result, if the task was cancelled too late for the call and the
                result would be lost.

        Raises:
            ClientClosed: The portal is closed, or was closed meanwhile.

        If cancelled, the call is cancelled, and has ended.
        """
        self._check()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        call: _Call[R, T] = _Call(function, partial(_settle, loop, ended))
        if self._host.post(lambda: self._host.begin(call)):
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                self._host.post(call.scope.cancel)
                while not ended.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.shield(ended)
                if undo is not None and call.succeeded:
                    value = call.result()
                    self.read(lambda: undo(value))
                raise
        return call.result()

    def read(self, function: Callable[[], T]) -> T:
        """Returns ``function()``, called in the background thread, or here where that is not running.

        It may be used at any time, also after `close`.
        """
        result: list[outcome.Outcome[T]] = []
        called = threading.Event()

        def run() -> None:
            result.append(outcome.capture(function))
            called.set()

        if self._host.thread is not threading.current_thread() and self._host.post(run):
            while not called.wait(_WAIT_S) and self._host.thread.is_alive():
                pass
        return (result[0] if result else outcome.capture(function)).unwrap()

    def post(self, function: Callable[[], object]) -> None:
        """Has ``function`` called in the background thread, unless that has ended, and waits for nothing."""
        self._host.post(function)

    def _check(self) -> None:
        host = self._host
        if host.process != os.getpid():
            raise ClientClosed("the client was made before a fork; make one in each process")
        if host.thread is threading.current_thread():
            raise RuntimeError("the blocking client was called from its own background thread")
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            host.start()

    def request_close(self) -> None:
        """Begins to close and waits for nothing. Safe at any moment, in finalizers too."""
        self._closed = True
        self._host.post(self._host.stop.set)

    def join(self, timeout_s: float = math.inf) -> None:
        """Waits until the thread has ended; ``timeout_s`` or ``close_timeout_s`` at most."""
        host = self._host
        if host.process == os.getpid() and host.thread is not threading.current_thread() and host.started:
            host.thread.join(min(timeout_s, self._close_timeout_s))

    def close(self) -> None:
        """Leaves the resource and ends the thread, in ``close_timeout_s`` at most; safe to repeat."""
        if self._host.process != os.getpid():
            return  # whoever held the lock when this process was forked is not here
        with self._lock:
            self.request_close()
        self.join()

    def __del__(self) -> None:
        if hasattr(self, "_host"):
            self.request_close()


def _settle(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Has ``ended`` set in its loop; nobody waits any more where that is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(ended.set_result, None)


class _Call(Generic[R, T]):
    """One call on its way to the background thread and back."""

    def __init__(self, function: Callable[[R], Awaitable[T]], on_end: Callable[[], object]) -> None:
        self.scope = trio.CancelScope()
        self.end = on_end
        self._function = function
        self._value: T | None = None
        self._error: Exception | None = ClientClosed("the client was closed while this call waited")

    async def run(self, resource: R) -> None:
        try:
            with self.scope:
                self._value = await self._function(resource)
                self._error = None
        except Exception as error:  # noqa: BLE001 - raised again where the caller is
            self._error = error
        finally:
            self.end()

    @property
    def succeeded(self) -> bool:
        return self._error is None

    def result(self) -> T:
        try:
            if self._error is not None:
                raise self._error
            return cast("T", self._value)
        finally:
            self._error = None  # a traceback that leads to its own exception would keep both alive


class _Host(Generic[R]):
    """The thread's side. Refers to no portal, so that a portal which nobody uses can be collected."""

    def __init__(self, resource: AbstractAsyncContextManager[R]) -> None:
        self.process = os.getpid()
        self.thread = threading.Thread(target=self._run, name="seedance-sdk", daemon=True)
        self.stop = trio.Event()
        self._resource = resource
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready = threading.Event()
        self._open: tuple[R, trio.Nursery] | None = None  # while calls may begin

    @property
    def started(self) -> bool:
        """Whether there is, or was, a thread: where none could begin, nobody may wait for it."""
        return self.thread.ident is not None

    def start(self) -> None:
        if not self.started:
            self.thread.start()

    def post(self, function: Callable[[], object]) -> bool:
        """Has ``function`` called in the thread; False where there is no thread to call it."""
        if not self.started or self.process != os.getpid():
            return False
        self.wait_until_ready()  # the first moments of the thread only
        if self._token is None:
            return False
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def wait_until_ready(self) -> None:
        self._ready.wait()

    def begin(self, call: _Call[R, Any]) -> None:
        """Starts a call; in the thread."""
        if self._open is None:
            call.end()
        else:
            resource, nursery = self._open
            nursery.start_soon(call.run, resource)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        async with self._resource as resource, trio.open_nursery() as nursery:
            self._open = (resource, nursery)
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            try:
                await self.stop.wait()
            finally:
                self._open = None  # a nursery that closes takes no more
                nursery.cancel_scope.cancel()


_portals: weakref.WeakSet[Portal[Any]] = weakref.WeakSet()
_EXIT_S = 10.0


@atexit.register
def _close_all() -> None:
    portals = list(_portals)
    for portal in portals:
        portal.request_close()
    deadline_s = time.monotonic() + _EXIT_S
    for portal in portals:
        portal.join(max(0.0, deadline_s - time.monotonic()))

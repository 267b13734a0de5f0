"""The one thread that owns PyTorch, the model and the device (S15).

Work goes in as a function, its result comes back to the waiting task; nothing else crosses. The thread never
touches trio but to say that a function is done, so no code of the model ever runs on the event loop and no
code of the loop ever waits for the model.

It must not know what the functions do: no engine, no tokens.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import trio

__all__ = ["THREAD_NAME", "DecodeThread", "Executor", "Job", "PipelineExecutor"]

THREAD_NAME = "seedance-decode"
"""What debuggers and ``top -H`` show."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """A function that runs, or will as soon as those before it have."""

    async def wait(self, *, abandon_on_cancel: bool = False) -> T_co:
        """Waits for its end and returns what it returned, or raises what it raised."""


class Executor(Protocol):
    """Where the engine runs: one function at a time, never on the event loop."""

    async def call(self, function: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Runs ``function`` and returns what it returns; see `DecodeThread.call`."""


class PipelineExecutor(Executor, Protocol):
    """One that can be given the next function while it is busy with the one before."""

    def submit(self, function: Callable[[], T]) -> Job[T]:
        """Runs ``function`` after all that were submitted before."""


class _ThreadJob(Generic[T]):
    """One function on its way through the thread; ``done`` is set on the event loop."""

    __slots__ = ("_done", "_error", "_function", "_result", "_token")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._token = trio.lowlevel.current_trio_token()
        self._done = trio.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting task, whatever it is
            self._error = error
        try:
            self._token.run_sync_soon(self._done.set)
        except trio.RunFinishedError:
            return  # the loop ended and abandoned this job

    async def wait(self, *, abandon_on_cancel: bool = False) -> T:
        """See `Job.wait`."""
        with trio.CancelScope(shield=not abandon_on_cancel):
            await self._done.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # or the traceback would keep a cycle alive
        return self._result  # type: ignore[return-value]  # set whenever there is no error


class DecodeThread:
    """A dedicated thread; create it, `start` it, `call` it, `stop` it.

    Resource handling: the thread is a daemon, so a model that hangs can't keep the process alive; `stop` says
    whether it ended in time.

    Args:
        name: The thread's name in debuggers and ``top -H``.
    """

    def __init__(self, name: str = THREAD_NAME) -> None:
        self._jobs: queue.SimpleQueue[_ThreadJob[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread, once."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        with suppress(OSError):  # Linux: Python tells the system no names before 3.14
            Path("/proc/thread-self/comm").write_text(self._thread.name)
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # its result may hold a whole model; don't keep it until the next job

    async def call(self, function: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Runs ``function`` on the thread and returns what it returns, or raises what it raises.

        Args:
            function: Runs to its end in any case: a thread can't be interrupted.
            abandon_on_cancel: If cancelled, leave at once and drop the result, as for loading a model, which
                takes longer than anybody waits. Otherwise a cancellation takes effect after the function.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.submit(function).wait(abandon_on_cancel=abandon_on_cancel)

    def submit(self, function: Callable[[], T]) -> Job[T]:
        """Runs ``function`` after all that were submitted before.

        The thread needs nobody to go on from one to the next, and each runs to its end whether anybody waits
        for that or not.
        """
        job = _ThreadJob(function)
        self._jobs.put(job)
        return job

    async def stop(self, timeout_s: float) -> bool:
        """Lets the thread end after what it is doing; True if it did within ``timeout_s`` seconds."""
        self._jobs.put(None)
        if self._thread.is_alive():
            await trio.to_thread.run_sync(self._thread.join, timeout_s)
        return not self._thread.is_alive()

"""An executor without a thread: functions run on the event loop and take their time on its clock.

For tests on a virtual clock. As on a thread, a function begins at once when the one before it has ended,
whatever the loop does then; it begins with its effects and takes its time afterwards.

It must not know what the functions do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from seedance_server.decode_thread import Job

__all__ = ["InlineExecutor"]

T = TypeVar("T")


class InlineExecutor:
    """Runs one function after the other, as `DecodeThread` does; each that is submitted has to be waited for.

    Args:
        step_s: What each function takes.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s
        self._jobs: deque[_InlineJob[Any]] = deque()  # the first one runs

    async def call(self, function: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """See `DecodeThread.call`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.submit(function).wait(abandon_on_cancel=abandon_on_cancel)

    def submit(self, function: Callable[[], T]) -> Job[T]:
        """See `DecodeThread.submit`."""
        job = _InlineJob(function, self._end)
        self._jobs.append(job)
        if len(self._jobs) == 1:
            job.begin(self.step_s)
        return job

    def _end(self) -> None:
        self._jobs.popleft()
        if self._jobs:
            self._jobs[0].begin(self.step_s)


class _InlineJob(Generic[T]):
    def __init__(self, function: Callable[[], T], on_end: Callable[[], None]) -> None:
        self._function = function
        self._on_end = on_end
        self._begun = trio.Event()
        self._end_s = 0.0
        self._result: T | None = None
        self._error: BaseException | None = None

    def begin(self, step_s: float) -> None:
        self._end_s = trio.current_time() + step_s
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting task, whatever it is
            self._error = error
        self._begun.set()

    async def wait(self, *, abandon_on_cancel: bool = False) -> T:
        with trio.CancelScope(shield=not abandon_on_cancel):
            await self._begun.wait()
            try:
                await trio.sleep_until(self._end_s)
            finally:
                self._on_end()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set whenever there is no error

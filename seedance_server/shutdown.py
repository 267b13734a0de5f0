"""How the server ends: a first signal asks, a later one insists, and at the deadline the process is gone.

    asked ─── streams go on ─── the rest is parked, connections close ─── journal, thread ─┤ deadline: exit 0
    engine failed ───────────── streams wait, connections close ───────── journal ─────────┤ deadline: exit 3

The deadline holds whatever hangs, a reader that doesn't read, a disk, a step of the model: a thread of its
own ends the process then. That loses nothing, since whatever was sent is in the journal.

It must not know what is being closed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import structlog
import trio

__all__ = ["ENGINE_FAILED_STATUS", "Shutdown"]

_log = structlog.get_logger(__name__)

ENGINE_FAILED_STATUS = 3
"""The exit status that asks for the next process: the engine failed, or the device that it runs on."""
_ECHO_S = 1.0
"""A signal so soon after the first is the same one: wrappers signal a process and its group."""
_LEAST_S = 2.0
"""Closing in order takes that long, however little time streams are given."""
_LAST_S = 1.0
"""What is left for the journal and the process itself; picked."""


class Shutdown:
    """What a signal does.

    Args:
        timeout_s: Time from the first signal to the end.
        close_timeout_s: Time for one closing handshake.
        end_process: Ends it at once with a status.

    Attributes:
        requested: Set by the first signal, or by `request`.
        loading: Cancelled by it: nobody waits for a model that isn't wanted any more.
        draining: Cancelled when streams can't go on any more; not begun where they couldn't from the start.
        streams_s: For how long streams go on: all but what closing three times over takes, at least half.
    """

    def __init__(
        self, timeout_s: float, close_timeout_s: float, *, end_process: Callable[[int], object] = os._exit
    ) -> None:
        self.requested = trio.Event()
        self.loading = trio.CancelScope()
        self.draining = trio.CancelScope()
        self._total_s = max(timeout_s, _LEAST_S)
        self._close_s = close_timeout_s
        self.streams_s = min(timeout_s, max(self._total_s / 2, self._total_s - 3 * close_timeout_s - _LAST_S))
        self._asked_s: float | None = None
        self._end_process = end_process
        self._status = 0
        self._is_watching = False
        self._deadline: threading.Timer | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; all of them where nobody has asked."""
        if self._asked_s is None:
            return self._total_s
        return max(0.0, self._asked_s + self._total_s - trio.current_time())

    @property
    def draining_s(self) -> float:
        """Seconds after which connections are cut, so that a last close and the journal still have theirs."""
        return max(0.0, self.remaining_s - min(self._close_s + _LAST_S, self._total_s / 2))

    def request(self) -> None:
        """Asks."""
        if self._asked_s is None:
            self._asked_s = trio.current_time()
        self.requested.set()
        self.loading.cancel()

    def fail(self) -> None:
        """Asks, since the engine has failed: no stream can go on, and whatever hangs with it ends in time."""
        self._status = ENGINE_FAILED_STATUS
        if self._is_watching:  # else the process is somebody else's
            self._set_deadline()
        self.request()
        self.draining.cancel()

    @property
    def has_failed(self) -> bool:
        """Whether the engine was the reason."""
        return self._status != 0

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = threading.Timer(self._total_s, self._give_up)
            self._deadline.daemon = True
            self._deadline.start()

    async def watch_signals(self, task_status: trio.TaskStatus[None]) -> None:
        """Heeds SIGINT and SIGTERM until cancelled; only on the main thread."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            self._is_watching = True
            task_status.started()
            async for number in signals:
                if self._asked_s is not None:
                    if trio.current_time() - self._asked_s >= _ECHO_S:
                        self._end_process(128 + number)
                    continue
                _log.info("shutting down", signal=signal.Signals(number).name, within_s=self._total_s)
                self._set_deadline()
                self.request()

    def close(self) -> None:
        """All is closed: the process ends by itself."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _give_up(self) -> None:
        sys.stderr.write("seedance-server: not all was closed in time; what was sent is in the journal\n")
        sys.stderr.flush()
        self._end_process(self._status)

"""The waits of one session that may not take for ever, and the one timer that ends them.

A time-out for each wait would cost a stream more than all else that a piece does to it, and nearly every wait
ends in time. So the timer is set for the first that may fall due, and looks, when it rings, which are: then
most have ended, and it is set for the first of the others. Must not know what is waited for.
"""

from __future__ import annotations

import math
from typing import Protocol

import trio

__all__ = ["Patience", "Waiting"]


class Waiting(Protocol):
    """Something that tasks wait for."""

    def expire(self, now: float) -> float:
        """Ends the waits whose time has come; returns when the next one's will, infinite for none."""


class Patience:
    """One timer for any number of waits, on trio's clock."""

    def __init__(self) -> None:
        self._waiting: set[Waiting] = set()
        self._rings_at = math.inf
        self._sleep = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, waiting: Waiting, until: float) -> None:
        """Has ``waiting.expire`` called at this time or soon after it."""
        self._waiting.add(waiting)
        if until < self._rings_at:
            self._rings_at = self._sleep.deadline = until

    def forget(self, waiting: Waiting) -> None:
        """Nobody waits there any more. Safe to repeat."""
        self._waiting.discard(waiting)

    async def run(self) -> None:
        """Keeps time until it is cancelled."""
        while True:
            with trio.CancelScope(deadline=self._rings_at) as self._sleep:
                await trio.sleep_forever()
            self._rings_at = math.inf
            now = trio.current_time()
            for waiting in tuple(self._waiting):
                until = waiting.expire(now)
                if until == math.inf:
                    self._waiting.discard(waiting)
                self._rings_at = min(self._rings_at, until)

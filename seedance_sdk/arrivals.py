"""What has arrived of one stream and was not taken yet, and the readers that wait for more.

A channel whose readers may wait until a time of their own at no cost for each piece: see `Patience`. What is
put while somebody waits goes straight to whoever has waited longest; each item goes to one reader, and one
that is cancelled has taken nothing. How much may be kept is its owner's business.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

import outcome
import trio

from seedance_sdk.patience import Patience

__all__ = ["Arrivals"]

T = TypeVar("T")


class Arrivals(Generic[T]):
    """A queue of one stream; all of it runs in one trio loop.

    Args:
        patience: Ends waits that take too long, while it runs.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._items: deque[T] = deque()
        self._readers: dict[trio.lowlevel.Task, float] = {}  # until when each waits, in their order
        self._ended = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Takes the next item, before `end` or `close`."""
        if self._readers:
            task = next(iter(self._readers))
            del self._readers[task]
            trio.lowlevel.reschedule(task, outcome.Value(item))
        else:
            self._items.append(item)

    def end(self) -> None:
        """Nothing more will be put; what is there can still be taken. Safe to repeat."""
        self._ended = True
        self._dismiss(trio.EndOfChannel)

    def close(self) -> list[T]:
        """Nothing more will be taken; returns what was there. Safe to repeat."""
        self._closed = True
        self._dismiss(trio.ClosedResourceError)
        rest = list(self._items)
        self._items.clear()
        return rest

    async def take(self, until: float = math.inf) -> T:
        """Returns the next item, as soon as there is one. Cancellation loses nothing.

        Args:
            until: How long to wait, on trio's clock.

        Raises:
            trio.TooSlowError: Nothing came by then.
            trio.EndOfChannel: Everything was taken, and nothing more will come.
            trio.ClosedResourceError: It was closed.
        """
        if self._items:
            await trio.lowlevel.checkpoint_if_cancelled()
            item = self._items.popleft()
            await trio.lowlevel.cancel_shielded_checkpoint()
            return item
        if self._closed or self._ended:
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError if self._closed else trio.EndOfChannel
        task = trio.lowlevel.current_task()
        self._readers[task] = until
        if until < math.inf:
            self._patience.watch(self, until)

        def leave(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._readers[task]
            return trio.lowlevel.Abort.SUCCEEDED

        handed: T = await trio.lowlevel.wait_task_rescheduled(leave)
        return handed

    def expire(self, now: float) -> float:
        """Ends the waits whose time has come; see `Waiting`."""
        for task in [task for task, until in self._readers.items() if until <= now]:
            del self._readers[task]
            trio.lowlevel.reschedule(task, outcome.Error(trio.TooSlowError()))
        return min(self._readers.values(), default=math.inf)

    def _dismiss(self, error: type[Exception]) -> None:
        for task in self._readers:
            trio.lowlevel.reschedule(task, outcome.Error(error()))
        self._readers.clear()
        self._patience.forget(self)

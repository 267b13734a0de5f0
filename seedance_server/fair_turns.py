"""A bounded number of turns at once, given to tenants in rotation.

Who has many in line waits behind its own: a tenant that has none there gets the next turn that ends. So what
one of them costs another is at most what is left of a turn that has begun.

It must not know what is done in a turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["FairTurns"]


class FairTurns:
    """Turns that tenants take.

    Args:
        at_once: Turns at the same time.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._lines: OrderedDict[str, deque[trio.Event]] = (
            OrderedDict()
        )  # the next tenant first; none is empty

    @property
    def waiting(self) -> int:
        """Those in line."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Waits for a turn and has it as long as the block lasts. If cancelled while waiting, it had none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        granted = trio.Event()
        self._lines.setdefault(tenant, deque()).append(granted)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self._pass_on()
            else:
                self._leave(tenant, granted)
            raise

    def _pass_on(self) -> None:
        if not self._lines:
            self._free += 1
            return
        tenant, line = self._lines.popitem(last=False)
        line.popleft().set()
        if line:
            self._lines[tenant] = line  # at the end: the others come first

    def _leave(self, tenant: str, granted: trio.Event) -> None:
        line = self._lines[tenant]
        line.remove(granted)
        if not line:
            del self._lines[tenant]

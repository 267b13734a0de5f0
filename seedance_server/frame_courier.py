"""Takes the frames of all streams to the journal, those of a step in one go.

Whoever puts frames here is told in a plain call what became of them, so no task wakes up for each stream and
each token. It tries once: what was refused is for whoever put it to try again, in a task that can wait. A
stream has one append here at a time, so streams bound what waits.

It must not know streams, nor what a frame says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog
import trio

from seedance_server.journal.append import Append
from seedance_server.journal.errors import JournalClosed
from seedance_server.journal.interface import Journal

__all__ = ["FrameCourier"]

_log = structlog.get_logger(__name__)

_TOGETHER = 128
"""Appends that go to the journal in one go: a step of as many streams, half of what a commit holds."""


class FrameCourier:
    """Of all streams on one journal.

    Args:
        journal: Where frames become durable; open while this runs.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: deque[tuple[Append, Callable[[Exception | None], None]]] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self._is_running = False

    def put(self, append: Append, settled: Callable[[Exception | None], None]) -> None:
        """Has frames appended.

        Args:
            append: The frames.
            settled: Called once, perhaps at once: with None when they are durable, else with what
                `Journal.append` would have raised.
        """
        if not self._is_running:
            settled(JournalClosed())
            return
        self._waiting.append((append, settled))
        self._news.unpark()

    async def run(self) -> None:
        """Carries until cancelled; what is under way then is settled first, what waits is refused."""
        self._is_running = True
        try:
            while True:
                while not self._waiting:
                    await self._news.park()
                with trio.CancelScope(shield=True):  # the journal has its own bounds
                    await self._carry()
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            self._is_running = False
            while self._waiting:
                self._tell(self._waiting.popleft()[1], JournalClosed())

    async def _carry(self) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
        errors = await self._journal.append_all([append for append, _ in taken])
        for (_, settled), error in zip(taken, errors, strict=True):
            self._tell(settled, error)

    @staticmethod
    def _tell(settled: Callable[[Exception | None], None], error: Exception | None) -> None:
        try:
            settled(error)
        except Exception:  # noqa: BLE001 - contained: it is one stream's trouble and no other's
            _log.exception("what became of frames could not be told")

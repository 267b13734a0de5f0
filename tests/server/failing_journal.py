"""A journal that fails when it is told to, in front of one in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from seedance_server.journal.memory import MemoryJournal

_SUBMIT_ARGUMENTS = 4


class FailingJournal(MemoryJournal):
    """A `MemoryJournal` with faults.

    Attributes:
        faults: By operation: called with its arguments; what it returns is raised.
        after: Whether the operation is done before it fails.
        commit_s: How long each operation takes; like any commit, it isn't cut short by a cancellation.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.faults: dict[str, Callable[..., Exception | None]] = {}
        self.after = False
        self.commit_s = 0.0
        self.complaint: str | None = None

    def trouble(self) -> str | None:
        return self.complaint or super().trouble()


def _failing(name: str) -> Any:
    async def operate(self: FailingJournal, *arguments: Any, **more: Any) -> Any:
        fault = self.faults.get(name)
        error = None if fault is None else fault(*arguments, **more)
        if error is not None and not self.after:
            raise error
        committed = None
        if name == "submit" and len(arguments) == _SUBMIT_ARGUMENTS:
            *arguments, committed = arguments  # it is told when the caller is
        with trio.CancelScope(shield=self.commit_s > 0):
            result = await getattr(MemoryJournal, name)(self, *arguments, **more)
            await trio.sleep(self.commit_s)
        if error is not None:
            raise error
        if committed is not None:
            committed(result)
        return result

    return operate


for _name in (
    *("create_session", "claim_session", "submit", "append", "read_frames", "record_message"),
    "take_events",
):
    setattr(FailingJournal, _name, _failing(_name))

"""Says whether the server is alive: a token lately if anything runs, a commit lately if any is awaited.

That a process answers says little: a forward pass may hang, an engine may turn over without bringing
anything, a disk may never return. So what counts is progress. Prompts being read are progress too, and with
nothing to do there is nothing to miss. Beside that it counts how often the event loop was held up: then acks,
pings and closes of everybody had to wait, though nobody's answer shows it.

It must not know streams or clients, and it ends nothing: an operator, or whoever balances the load, reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio
from attrs import define

from seedance_server.engine_loop import EngineLoop
from seedance_server.journal.interface import Journal
from seedance_server.readiness import Cause, Reason

__all__ = ["Watchdog", "WatchdogStatistics"]

_LOOK_S = 1.0
"""Between two looks; limits are of many seconds."""
_LOOP_STALL_S = 0.05
"""The loop is to turn over in less: longer, and a pong is late that somebody measures."""


@define
class WatchdogStatistics:
    """Counts since the start.

    Attributes:
        loop_stalls: Times that one turn of the event loop took over 50 ms.
        longest_loop_stall_s: The longest turn of all.
    """

    loop_stalls: int = 0
    longest_loop_stall_s: float = 0.0


@define
class _Progress:
    """Since when something has been due without any of it being done."""

    done: int = 0
    since_s: float = 0.0

    def look(self, *, is_due: bool, done: int, now_s: float) -> float:
        """Seconds without progress; 0 where none is due."""
        if not is_due or done != self.done:
            self.done, self.since_s = done, now_s
        return now_s - self.since_s


class Watchdog(trio.abc.Instrument):
    """Looks at the engine, the journal and the event loop.

    Args:
        engine_loop: Whose tokens are awaited.
        journal: Whose commits are awaited.
        stall_timeout_s: How long either may bring nothing though it should.
        clock: Monotonic seconds, by which turns of the loop are measured.
    """

    def __init__(
        self,
        engine_loop: EngineLoop,
        journal: Journal,
        *,
        stall_timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine_loop = engine_loop
        self._journal = journal
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._tokens = _Progress()
        self._commits = _Progress()
        self._turn_began_s: float | None = None
        self._counts = WatchdogStatistics()

    def statistics(self) -> WatchdogStatistics:
        """Counts so far; the object is live."""
        return self._counts

    def reasons(self) -> tuple[Reason, ...]:
        """All that keeps the server from taking new work just now, the gravest first."""
        tokens_s, commits_s = self._look()
        found: list[Reason] = []
        if (trouble := self._engine_loop.trouble()) is not None:
            has_stopped = self._engine_loop.failure is not None
            found.append(Reason(Cause.ENGINE if has_stopped else Cause.STALLED, trouble))
        elif tokens_s > self._stall_timeout_s:
            text = f"the engine has brought no token for {tokens_s:.0f} s, though it has work"
            found.append(Reason(Cause.STALLED, text))
        if (trouble := self._journal.trouble()) is not None:
            found.append(Reason(Cause.JOURNAL, trouble))
        elif commits_s > self._stall_timeout_s:
            text = f"the journal has made no commit for {commits_s:.0f} s, though some wait for it"
            found.append(Reason(Cause.JOURNAL, text))
        if (shortage := self._journal.shortage()) is not None:
            found.append(Reason(Cause.ROOM, shortage))
        return tuple(found)

    def _look(self) -> tuple[float, float]:
        """Seconds without a token that was due, and without a commit."""
        now_s = trio.current_time()
        engine, journal = self._engine_loop.statistics(), self._journal.statistics()
        return (
            self._tokens.look(
                is_due=engine.running > 0,
                done=engine.outputs + engine.computed_tokens,
                now_s=now_s,
            ),
            self._commits.look(is_due=journal.unsettled > 0, done=journal.operations, now_s=now_s),
        )

    async def run(self) -> None:
        """Looks again and again, for ever."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                self._look()
                await trio.sleep(_LOOK_S)
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Trio calls it when a turn of the loop begins."""
        self._turn_began_s = self._clock()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Trio calls it when the turn is over."""
        if self._turn_began_s is None:
            return
        lasted_s = self._clock() - self._turn_began_s
        self._counts.longest_loop_stall_s = max(self._counts.longest_loop_stall_s, lasted_s)
        self._counts.loop_stalls += lasted_s > _LOOP_STALL_S

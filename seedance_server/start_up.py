"""What a start is doing, for how long, and how far it has come: for the terminal, readiness and the log.

Stages follow each other; each is a line of words, told when it begins. A stage that knows how much of its
work is done may say so as often as it likes: readiness shows the newest share, the terminal one in a while.
Told on the decode thread and read on the event loop, so what is read is one value that is replaced whole.

It must not know what is started.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import structlog
from attrs import define, field

__all__ = ["StartUp"]

_log = structlog.get_logger(__name__)

_BETWEEN_SHARES_S = 10.0
"""On the terminal: somebody who waits for a large model sees that it moves, and a log isn't filled by it."""


def _write(line: str) -> None:
    sys.stderr.write(f"seedance-server: {line}\n")
    sys.stderr.flush()


@define(eq=False)
class StartUp:
    """One start of the server.

    Args:
        write: Shows a line to whoever started it.
        clock: Seconds, monotonic.

    Attributes:
        phase: What is being done, with the share that is done where it is known; "" before the first stage.
        stages: What is over, with its seconds, in order.
    """

    write: Callable[[str], None] = _write
    clock: Callable[[], float] = time.monotonic
    phase: str = field(default="", init=False)
    stages: list[tuple[str, float]] = field(factory=list, init=False)
    _line: str = field(default="", init=False)
    _began_s: float = field(default=0.0, init=False)
    _shown_s: float = field(default=0.0, init=False)

    def report(self, line: str, share: float | None = None) -> None:
        """A stage begins, or goes on.

        Args:
            line: What it does, in words.
            share: How much of it is done, from 0 to 1, where that is known.
        """
        now_s = self.clock()
        begins = line != self._line
        if begins:
            self._end(now_s)
            self._line, self._began_s = line, now_s
        self.phase = line if share is None else f"{line}: {share:.0%}"
        if begins or now_s - self._shown_s >= _BETWEEN_SHARES_S:
            self._shown_s = now_s
            self.write(line if begins else self.phase)

    def finish(self) -> None:
        """The server is ready."""
        self._end(self.clock())
        self._line = self.phase = ""
        # What has to be imported depends on the installation alone; the rest is the model's.
        first_s = self.stages[0][1] if self.stages else 0.0
        total_s = sum(seconds for _, seconds in self.stages)
        _log.info("started", seconds=round(total_s, 2), after_first_stage_s=round(total_s - first_s, 2))

    def _end(self, now_s: float) -> None:
        if self._line:
            seconds = now_s - self._began_s
            self.stages.append((self._line, seconds))
            _log.debug("stage of the start", stage=self._line, seconds=round(seconds, 3))

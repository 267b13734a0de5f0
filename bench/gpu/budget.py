"""How much of a run's time is left: whatever doesn't fit any more is skipped, and said to be."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import define, field

__all__ = ["Budget"]


@define
class Budget:
    """Time for a whole run.

    Attributes:
        seconds: All of it.
        clock: Seconds, monotonic.
        skipped: What there was no time for.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    skipped: list[str] = field(factory=list)
    _started_s: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started_s = self.clock()

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._started_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; not below 0."""
        return max(0.0, self.seconds - self.spent_s)

    def allows(self, what: str, seconds: float) -> bool:
        """Whether something that should take so long may begin; else it is noted as skipped."""
        if seconds <= self.left_s:
            return True
        self.skipped.append(what)
        return False

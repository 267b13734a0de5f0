"""How much dearer the rows of drafts are in service than they were measured to be at start.

At start a machine may rest that will be busy later. So each step with drafts is held against the last one
without: if it took longer than it should have, rows are taken to be a little dearer, else a little cheaper.
By how much it took longer doesn't matter, so that a step that something held up for long says no more than
any other: what is found is a median.

The invariant: rows are never taken to be cheaper than measured, since what is found wanders where they cost
next to nothing. Pure Python; it knows no drafts, only what they should have cost.
"""

__all__ = ["Dearness"]

_STEP = 1.05
"""Dearer or cheaper at each step that drafts made longer: twice as dear is known after fourteen. Picked."""
_MOST = 32.0
"""Beyond it hardly a draft is worth its rows; from here it comes back in seventy such steps. Picked."""
_STALE_AFTER = 16
"""Steps, after which the last one without drafts is no measure any more: texts grow, machines change."""


class Dearness:
    """Of one engine.

    Attributes:
        factor: How many times as much longer as measured drafts make a step; 1 or more.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._plain: tuple[int, float] | None = None  # answers and seconds of the last step without drafts
        self._age = 0  # steps since then

    def note(self, answers: int, longer_by: float, seconds: float) -> None:
        """Learn from a step that held answers and drafts alone.

        Args:
            answers: How many went on.
            longer_by: By how much its drafts should have made it longer, as measured at start, as a share
                of it without them; 0 if it had none.
            seconds: What it took.
        """
        self._age += 1
        if not longer_by:
            self._plain, self._age = (answers, seconds), 0
        elif self._plain is not None and self._plain[0] == answers and self._age <= _STALE_AFTER:
            expected = self._plain[1] * (1 + self.factor * longer_by)
            factor = self.factor * _STEP if seconds > expected else self.factor / _STEP
            self.factor = min(_MOST, max(1.0, factor))

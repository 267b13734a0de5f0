"""How much dearer the rows of drafts are in service than they were measured to be at start.

At start a machine may rest that will be busy later. So each step with drafts is held against the last one
without: if it took longer than it should have, rows are taken to be a little dearer, else a little cheaper.
By how much it took longer doesn't matter, so that a step that something held up for long says no more than
any other: what is found is a median. What isn't found anew is forgotten, bit by bit, and where every step has
drafts one is wanted without now and then: nothing that was found once stands for ever.

The invariant: rows are never taken to be cheaper than measured, since what is found wanders where they cost
next to nothing. Pure Python; it knows no drafts, only what they should have cost.
"""

__all__ = ["Dearness"]

_STEP = 1.05
"""Dearer or cheaper at each step that drafts made longer: twice as dear is known after fourteen. Picked."""
_FADE = 1.0005
"""Cheaper at each step that says nothing, half as dear after 1,400: a drop beside the steps that do say
something, and where drafts have become too dear to run, they are tried again. From `_MOST` it fades in 7,000.
Picked: at 1.001 they are tried twice as often, and eight answers whose rows are eight times as dear as
measured lose 2 percent by it, not 1 (simulated)."""
_MOST = 32.0
"""Beyond it hardly a draft is worth its rows; seventy steps that say something come back from it. Picked."""
_STALE_AFTER = 16
"""Steps, after which the last one without drafts is no measure any more: texts grow, machines change."""
_PLAIN_AFTER = 99
"""Steps, of which at least one goes without drafts: 1 percent of what they save, and the next sixteen say
what rows cost. Odd, so that where prompts stand beside every other step it isn't always there. Picked."""


class Dearness:
    """Of one engine.

    Attributes:
        factor: How many times as much longer as measured drafts make a step; 1 or more.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._plain: tuple[int, float] | None = None  # answers and seconds of the last step without drafts
        self._age = 0  # steps since then

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should have no drafts, for others to be held against."""
        return self._age % _PLAIN_AFTER == _PLAIN_AFTER - 1

    def note(self, answers: int, longer_by: float, seconds: float) -> None:
        """Learn from a step.

        Args:
            answers: How many went on; 0 if it held more than answers and drafts, so that it says nothing.
            longer_by: By how much its drafts should have made it longer, as measured at start, as a share
                of it without them; 0 if it had none.
            seconds: What it took.
        """
        self._age += 1
        change = 1 / _FADE
        if answers and not longer_by:
            self._plain, self._age = (answers, seconds), 0
        elif self._plain is not None and self._plain[0] == answers and self._age <= _STALE_AFTER:
            expected = self._plain[1] * (1 + self.factor * longer_by)
            change = _STEP if seconds > expected else 1 / _STEP
        self.factor = min(_MOST, max(1.0, self.factor * change))

"""How many prompt tokens a step may hold beside so many decodes, so that running answers keep their pace.

A step's time is taken to be a constant and so much per row, both learned from the steps that were: a straight
line through them, in which an older step counts for less. The invariant: beside decodes, the rows of a step
are those that the line puts within the inter-token budget, but never fewer than `LEAST_TOKENS` of a prompt,
so that a long prompt gets on beside any number of answers. With no decodes there is nobody to hold up.

It is told the times; it has no clock, and knows neither sequences nor tenants.
"""

__all__ = ["LEAST_TOKENS", "PrefillBudget"]

LEAST_TOKENS = 16
"""Of prompts in any step. Picked: a prompt of 1,000 tokens then takes some 60 steps at worst."""
_FORGETTING = 0.97
"""Weight of a step against the one after it: some thirty steps are remembered. Picked."""
_STRETCH = 2.0
"""Without a budget in time, a step with prompts may take so many times what its decodes alone would take: so
the slowest intervals stay within 2.5 times the usual one, with some room for noise."""
_FEW = 4.0
"""Below this many steps nothing is known, and above it a step counts for no more than `_OUTLIER` expects."""
_OUTLIER = 4.0


class PrefillBudget:
    """Learns from steps what the next one may hold.

    Args:
        most_tokens: Of prompts, in any step.
        interval_s: Longest that a step with decodes should take, in seconds; None for `_STRETCH` times what
            its decodes alone would take.
    """

    def __init__(self, most_tokens: int, interval_s: float | None = None) -> None:
        self._most = most_tokens
        self._interval_s = interval_s
        self._steps = self._rows = self._seconds = self._squares = self._products = 0.0
        self._row_s: float | None = None  # the line's slope, kept while all steps are alike

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step of so many rows, decodes and prompts together."""
        if self._steps > _FEW:
            # A step that something else held up says little about steps.
            seconds = min(seconds, _OUTLIER * self.step_s(rows))
        self._steps = self._steps * _FORGETTING + 1
        self._rows = self._rows * _FORGETTING + rows
        self._seconds = self._seconds * _FORGETTING + seconds
        self._squares = self._squares * _FORGETTING + rows * rows
        self._products = self._products * _FORGETTING + rows * seconds
        spread = self._squares - self._rows * self._rows / self._steps
        if spread > 0.01 * self._squares:
            slope = (self._products - self._rows * self._seconds / self._steps) / spread
            # Never more than if there were no constant part, and never a gift.
            self._row_s = min(max(slope, 0.0), self._seconds / self._rows)

    def step_s(self, rows: int) -> float:
        """Seconds that a step of so many rows should take; 0 as long as nothing is known."""
        if not self._steps:
            return 0.0
        mean_rows, mean_s = self._rows / self._steps, self._seconds / self._steps
        row_s = mean_s / mean_rows if self._row_s is None else self._row_s
        return max(0.0, mean_s + row_s * (rows - mean_rows))

    def tokens_beside(self, decodes: int) -> int:
        """Prompt tokens that a step may hold beside so many decodes; at least 1."""
        if not decodes:
            return self._most
        least = min(LEAST_TOKENS, self._most)
        if self._steps < _FEW:
            return least
        alone_s = self.step_s(decodes)
        budget_s = _STRETCH * alone_s if self._interval_s is None else self._interval_s
        row_s = self.step_s(decodes + 1) - alone_s
        left_s = budget_s - alone_s
        if left_s <= 0:
            return least
        return self._most if left_s >= row_s * self._most else max(least, int(left_s / row_s))

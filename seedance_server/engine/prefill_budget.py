"""How many prompt tokens a step may hold beside so many decodes, so that running answers keep their pace.

A step's time is taken to be a constant, so much per row whose next token is drawn, and so much per other
prompt token: those cost less, since they need no logits. After each step the three figures are moved by half
of what they were wrong by (normalised least mean squares), and none of them below zero: a few steps suffice,
and what a step says nothing about stays as it was. The invariant: beside decodes, a step holds the prompt
tokens that these figures put within the inter-token budget, but never fewer than `LEAST_TOKENS`, so that a
long prompt gets on beside any number of answers. With no decodes there is nobody to hold up.

Without a budget in time it is one of waiting: what a step's prompts add to it, for all its answers together,
is no more than what answers and waiting prompts would wait for such a step without them. So a lone prompt
makes a step twice as long at most, give or take one over the number of answers: the slowest intervals stay
within 2.5 times the usual one. In a burst, where many wait and few are held up, prompts come first.

It is told the times; it has no clock, and knows neither sequences nor tenants.
"""

__all__ = ["LEAST_TOKENS", "PrefillBudget"]

LEAST_TOKENS = 16
"""Of prompts in any step. Picked: a prompt of 1,000 tokens then takes some 60 steps at worst."""
_USUAL = (1.0, 1 / 32, 1 / 128)
"""Makes the three parts of a usual step about equally large, so that all are learned alike. Picked."""
_RATE = 0.5
_FEW = 8
"""Below this many steps nothing is known; and above it a step counts for no more than `_OUTLIER` expects."""
_OUTLIER = 4.0


class PrefillBudget:
    """Learns from steps what the next one may hold.

    Args:
        most_tokens: Of prompts, in any step.
        interval_s: Longest that a step with decodes should take, in seconds; None for one that follows from
            who waits.
    """

    def __init__(self, most_tokens: int, interval_s: float | None = None) -> None:
        self._most = most_tokens
        self._interval_s = interval_s
        self._steps = 0
        self._costs = (0.0, 0.0, 0.0)

    def note(self, sampled_rows: int, other_rows: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            sampled_rows: Rows after which a token was drawn.
            other_rows: The others, all of prompts.
            seconds: What the step took.
        """
        parts = _parts(sampled_rows, other_rows)
        expected_s = self.step_s(sampled_rows, other_rows)
        if self._steps >= _FEW:
            seconds = min(seconds, _OUTLIER * expected_s)  # something else held it up
        move = _RATE * (seconds - expected_s) / sum(part * part for part in parts)
        fixed, row, token = (
            max(0.0, cost + move * part) for cost, part in zip(self._costs, parts, strict=True)
        )
        self._costs = (fixed, row, token)
        self._steps += 1

    def step_s(self, sampled_rows: int, other_rows: int = 0) -> float:
        """Seconds that such a step should take; 0 as long as nothing is known."""
        parts = _parts(sampled_rows, other_rows)
        return sum(cost * part for cost, part in zip(self._costs, parts, strict=True))

    def tokens_beside(self, decodes: int, prompts: int) -> int:
        """Prompt tokens that a step may hold; at least 1.

        Args:
            decodes: Answers that go on in it.
            prompts: Those that could take part in it.
        """
        if not decodes:
            return self._most
        least = min(LEAST_TOKENS, self._most)
        if self._steps < _FEW:
            return least
        alone_s = self.step_s(decodes)
        if self._interval_s is None:
            left_s = alone_s * (decodes + prompts) / decodes
        else:
            left_s = self._interval_s - alone_s
        token_s = self._costs[2] * _USUAL[2]
        if left_s <= 0:
            return least
        return self._most if left_s >= token_s * self._most else max(least, int(left_s / token_s))


def _parts(sampled_rows: int, other_rows: int) -> tuple[float, float, float]:
    return _USUAL[0], sampled_rows * _USUAL[1], other_rows * _USUAL[2]

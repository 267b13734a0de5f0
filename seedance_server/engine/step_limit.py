"""How large a step may be on a device that ran out of memory: half of the one that failed, for a while.

What a step needs grows with its rows, and the pool was there before: so a smaller step may do where taking
blocks from somebody would not help. After a number of steps that went well the bound doubles again, for what
was short may have been given back meanwhile. Pure Python; it knows no device.
"""

from attrs import define, field

__all__ = ["StepLimit"]

_STEPS = 256
"""So many must go well before the bound doubles: one in 256 that fails costs less than half-size steps do."""


@define
class StepLimit:
    """The bound, which begins at the most that was configured.

    Attributes:
        most_rows: Chunks of a step at most.
        most_tokens: Prompt tokens of a step at most.
        rows: The present bound on chunks.
        tokens: The present bound on prompt tokens.
        failures: How often a device refused a step.
    """

    most_rows: int
    most_tokens: int
    rows: int = field(init=False)
    tokens: int = field(init=False)
    failures: int = field(init=False, default=0)
    _went_well: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.rows, self.tokens = self.most_rows, self.most_tokens

    def halve(self, rows: int, tokens: int) -> bool:
        """A step of so many chunks and tokens was too large.

        Returns:
            False where there is no smaller one.
        """
        self.failures += 1
        self._went_well = 0
        if tokens <= 1:
            return False
        self.rows, self.tokens = max(1, min(self.rows, rows // 2)), max(1, min(self.tokens, tokens // 2))
        return True

    def note_success(self) -> int:
        """A step went well.

        Returns:
            The bound on chunks from here on.
        """
        if self.rows < self.most_rows or self.tokens < self.most_tokens:
            self._went_well += 1
            if self._went_well >= _STEPS:
                self._went_well = 0
                self.rows, self.tokens = (
                    min(self.most_rows, 2 * self.rows),
                    min(self.most_tokens, 2 * self.tokens),
                )
        return self.rows

"""Which sequences may run ahead in the next step, and by how many tokens.

A draft's tokens stand behind the sequence's own in the same step, so that the logits behind each of them come
at once. The sampler then chooses at every position as if there were no draft: its choice follows from
logits, seed and position. While it chooses what the draft says, the next position's choice holds as well. So
the tokens are those that would have come one by one, whatever the temperature; only their number per step
differs.

Drafts share the cost of a step: what each row more costs was measured (`StepCost`) and is watched
(`Dearness`), and how often a guess of its kind was right in this sequence is counted (`PromptLookup`). Of all
guesses the most likely ones go along, as many as bring the most tokens for the time.

The rule that bounds what this may cost: **each sequence has an account**, in steps without drafts. A step
that drafts make longer takes from the account of every sequence in it what it is longer by, whosever drafts
they are; each right guess pays in the step that it saves, and each step a small allowance. A step may cost
no more than the poorest of them has. So no sequence ever takes more than `ALLOWANCE` longer than without
drafts, whatever the text, if rows cost what they are taken to.

Pure Python; it knows nothing of blocks: the scheduler drops what has no room.
"""

from collections.abc import Iterable

from attrs import define, field

from seedance_server.engine.dearness import Dearness
from seedance_server.engine.prompt_lookup import PromptLookup
from seedance_server.engine.sequence import Sequence
from seedance_server.engine.step_cost import USUAL_COST, StepCost

__all__ = ["ALLOWANCE", "Speculation"]

ALLOWANCE = 0.03
"""The most that drafts may cost, as a share of the time without them, by what rows are taken to cost.
Guessing itself takes another 0.5 to 2 percent, most at eight answers (bench/README.md)."""
_MOST_SAVED = 1.0
"""Steps that an account holds: a text that has been easy until here may not cost more than one from here on.
Picked."""
_MOST_DECODING = 16
_MOST_ROWS = 32
"""Above these nothing is guessed: rows are dear there, and a longer step is felt by many. Picked."""
_LEAST_COST = 0.004
"""Of a row, in steps: no row is free, even where measuring found that none takes longer. Picked."""


@define(eq=False)
class _Ahead:
    """What is kept of one sequence."""

    lookup: PromptLookup = field(factory=PromptLookup)
    account: float = 0.0

    def pay(self, steps: float) -> None:
        self.account = min(_MOST_SAVED, self.account + steps)


class Speculation:
    """The drafts of one engine.

    Args:
        most_tokens: Longest draft; 0 for none at all.

    Attributes:
        cost: What steps cost, as measured at start.
        drafted_tokens: Tokens that were run ahead.
        accepted_tokens: Those of them that were right: steps saved.
    """

    def __init__(self, most_tokens: int, cost: StepCost = USUAL_COST) -> None:
        self._most_tokens = most_tokens
        self._ahead: dict[int, _Ahead] = {}
        self._dearness = Dearness()
        self.cost = cost
        self.drafted_tokens = 0
        self.accepted_tokens = 0

    def propose(self, running: Iterable[Sequence], other_rows: int = 0) -> None:
        """Set the drafts for the next step.

        Args:
            running: The sequences that hold blocks.
            other_rows: Rows of prompts that it will presumably hold.
        """
        sequences = tuple(running)
        for sequence in sequences:
            sequence.draft = ()
        decoding = [each for each in sequences if each.remaining == 1 and not each.paused]
        if not self._most_tokens or not 0 < len(decoding) <= _MOST_DECODING:
            return
        aheads = [self._ahead.setdefault(each.id, _Ahead()) for each in decoding]
        for ahead in aheads:
            ahead.pay(ALLOWANCE)
        if self._dearness.wants_plain:
            return  # what drafts bring is lost once, and what they cost is known again
        guesses = [self._guess(each, ahead) for each, ahead in zip(decoding, aheads, strict=True)]
        # A guess is never likelier than the one before it, so that each draft's first tokens come first.
        ranked = sorted(
            ((chance, place) for place, guess in enumerate(guesses) for _, chance in guess),
            key=lambda each: each[0],
            reverse=True,
        )
        count, longer_by = self._choose(
            [chance for chance, _ in ranked], len(decoding), other_rows, min(each.account for each in aheads)
        )
        lengths = [0] * len(decoding)
        for _, place in ranked[:count]:
            lengths[place] += 1
        for sequence, ahead, guess, length in zip(decoding, aheads, guesses, lengths, strict=True):
            sequence.draft = tuple(token_id for token_id, _ in guess[:length])
            ahead.pay(-longer_by)

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of the ``drafted`` tokens that were run, the first ``accepted`` were chosen."""
        if drafted:
            self.drafted_tokens += drafted
            self.accepted_tokens += accepted
            self._ahead[sequence.id].pay(accepted)

    def note(self, answers: int, rows: int, prompt_rows: int, seconds: float) -> None:
        """What a step took: of so many answers with their drafts in ``rows``, and prompts beside them."""
        if answers:
            alone = 0 if prompt_rows else answers
            self._dearness.note(alone, self._longer_by(answers, rows - answers), seconds)

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._ahead.pop(sequence.id, None)

    def _guess(self, sequence: Sequence, ahead: _Ahead) -> list[tuple[int, float]]:
        if sequence.request.params.is_constrained:
            return []  # what it may say behind a draft isn't known
        # Behind the last accepted token comes one that is sampled.
        room = min(self._most_tokens, sequence.limit - len(sequence.token_ids) - 1)
        if room < 1 or not sequence.completion_tokens:
            return []
        return ahead.lookup.propose(sequence.token_ids, room)

    def _choose(
        self, chances: list[float], decoding: int, other_rows: int, account: float
    ) -> tuple[int, float]:
        """How many of the guesses to run, and by how much that makes the step longer, as a share of it."""
        rows = decoding + other_rows
        tokens, best, chosen = float(decoding), float(decoding), (0, 0.0)
        for count, chance in enumerate(chances[: _MOST_ROWS - decoding], 1):
            longer_by = self._dearness.factor * self._longer_by(rows, count)
            if longer_by > account:
                break
            tokens += chance
            if tokens / (1 + longer_by) > best:
                best, chosen = tokens / (1 + longer_by), (count, longer_by)
        return chosen

    def _longer_by(self, rows: int, drafted: int) -> float:
        """What drafts make a step longer by, as a share of it without them, as measured at start."""
        return max(self.cost.of(rows + drafted) / self.cost.of(rows) - 1, drafted * _LEAST_COST)

"""Which sequences may run ahead in the next step, and by how many tokens.

A draft's tokens stand behind the sequence's own in the same step, so that the logits behind each of them come
at once. The sampler then chooses at every position as if there were no draft: its choice follows from
logits, seed and position. While it chooses what the draft says, the next position's choice holds as well. So
the tokens are those that would have come one by one, whatever the temperature; only their number per step
differs.

It pays where rows are cheap: a step of a few rows takes hardly longer than one of a single row, a full one
takes longer with each. Pure Python; it knows nothing of blocks: the scheduler drops what has no room.
"""

from collections.abc import Iterable

from seedance_server.engine.prompt_lookup import PromptLookup
from seedance_server.engine.sequence import Sequence

__all__ = ["Speculation"]

_ROWS = 8
"""Most rows of decoding sequences and drafts together: so many take about as long as one."""


class Speculation:
    """The drafts of one engine.

    Args:
        most_tokens: Longest draft; 0 for none at all.

    Attributes:
        drafted_tokens: Tokens that were run ahead.
        accepted_tokens: Those of them that were right: steps saved.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._lookups: dict[int, PromptLookup] = {}
        self.drafted_tokens = 0
        self.accepted_tokens = 0

    def propose(self, running: Iterable[Sequence]) -> None:
        """Set the drafts for the next step.

        Args:
            running: The sequences that hold blocks.
        """
        sequences = tuple(running)
        decoding = [each for each in sequences if each.remaining == 1 and not each.paused]
        most = min(self._most_tokens, _ROWS // max(1, len(decoding)) - 1)
        for sequence in sequences:
            sequence.draft = ()
        if most < 1:
            return
        for sequence in decoding:
            if sequence.request.params.is_constrained:
                continue  # what it may say behind a draft isn't known
            # Behind the last accepted token comes one that is sampled.
            room = min(most, sequence.limit - len(sequence.token_ids) - 1)
            if room > 0 and sequence.completion_tokens:
                lookup = self._lookups.setdefault(sequence.id, PromptLookup(self._most_tokens))
                sequence.draft = lookup.propose(sequence.token_ids, room)

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Of the ``drafted`` tokens that were run, the first ``accepted`` were chosen."""
        if drafted:
            self.drafted_tokens += drafted
            self.accepted_tokens += accepted
            self._lookups[sequence.id].learn(drafted, accepted)

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._lookups.pop(sequence.id, None)

"""Guesses an answer's next tokens from where its last ones stood before, in its prompt or in itself.

Code, lists and quotations repeat what stands above them; a story doesn't. So a guess costs a lookup, and one
that is tried and fails makes the next ones rarer and shorter: after ever more steps, up to `_LONGEST_REST`.
The invariant: a guess is only ever a guess. It changes how many tokens a step may bring, never which.

Pure Python; it knows neither model nor batch.
"""

from collections.abc import Sequence

__all__ = ["PromptLookup"]

_NGRAM = 3
"""Tokens that must agree; fewer guess wrong more often, more miss a first repetition. Picked."""
_FIRST_GUESS = 3  # tokens; a good guess doubles the next one
_LONGEST_REST = 64  # steps
_LOOKBACK = 8192  # tokens of a prompt that are indexed, so that a long one costs no more; picked


class PromptLookup:
    """The guesses of one sequence.

    Args:
        longest: Most tokens of one guess.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._seen: dict[tuple[int, ...], int] = {}  # the token behind the last place of each n-gram
        self._indexed = 0
        self._guess = min(_FIRST_GUESS, longest)
        self._rest = 0
        self._next_rest = 1

    def propose(self, token_ids: Sequence[int], most: int) -> tuple[int, ...]:
        """The tokens that may come next.

        Args:
            token_ids: The sequence's tokens so far: those of the last call, and more.
            most: Most tokens wanted now.

        Returns:
            At most ``most``; none where nothing is known, or after guesses that failed.
        """
        if self._rest:
            self._rest -= 1
            return ()
        length = len(token_ids)
        for end in range(max(self._indexed, length - _LOOKBACK, _NGRAM), length):
            self._seen[tuple(token_ids[end - _NGRAM : end])] = end
        self._indexed = length
        place = self._seen.get(tuple(token_ids[-_NGRAM:]))
        if place is None:
            return ()
        guess: list[int] = []
        for position in range(place, place + min(most, self._guess)):
            # Beyond the sequence's end the guess quotes itself: what repeats goes on repeating.
            guess.append(token_ids[position] if position < length else guess[position - length])
        return tuple(guess)

    def learn(self, proposed: int, accepted: int) -> None:
        """Of ``proposed`` tokens, at least one, the first ``accepted`` were right."""
        if accepted == 0:
            self._guess = max(1, self._guess // 2)
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
            return
        self._next_rest = 1
        self._guess = min(self._longest, 2 * accepted + 1 if accepted == proposed else accepted + 1)

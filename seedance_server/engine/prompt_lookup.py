"""Guesses an answer's next tokens from where its last ones stood before, in its prompt or in itself.

Code, lists and quotations repeat what stands above them; a story does so less. Three things are guessed from:

- the last place of the last three tokens; failing that, of the last two, or of the last one alone;
- the text that went along so far, after one or a few tokens that differ: lists and edited text go on as
  before behind a new word;
- what stood instead, when that text last had the token that it has now: a name or a number that has changed
  changes again.

How likely a guess is depends on its kind: how long the agreement is, and whether that place went on as the
one before it did. Of each kind it is counted how often it was right in this answer, for every token, whether
or not the guess was ever run: nothing has to be tried to be known. The likeliest guess is the one that is
made.

The invariant: a guess is only ever a guess. It changes how many tokens a step may bring, never which. Pure
Python; it knows neither model nor batch, nor what a guess costs.
"""

from collections.abc import Sequence

from attrs import frozen

__all__ = ["PromptLookup"]

_RUNS = (3, 2, 1)  # of tokens, whose last place is known
_LONGEST = 16  # agreement that is looked for, in tokens
_BOUNDS = (1, 2, 3, 5, 8, 15)  # of agreement: between two of them it is of one kind
_SURE = 8  # tokens of agreement above which a quotation goes on without looking for another one
_BACK = 8  # tokens of the text that goes along that are compared with the last ones
_LOOKBACK = 8192  # tokens of a prompt that are looked at, so that a long one costs no more; picked
_WARM = 64  # the last ones of the prompt, from which on it is known what goes along
_AT_ONCE = 512  # tokens that one call reads: some 0.7 ms
_WEIGHT = 5.0  # counts that each kind begins with; picked
_MEMORY = 0.9  # of the counts at each new one, for a text may change its ways; picked
_LEAST_CHANCE = 0.05  # of a guess: less isn't worth looking for

_Kind = tuple[str, int, int]

_AGAIN = (
    (0.32, 0.12, 0.57),
    (0.57, 0.17, 0.83),
    (0.71, 0.11, 0.94),
    (0.70, 0.24, 0.96),
    (0.78, 0.18, 0.97),
    (0.95, 0.40, 0.99),
    (0.96, 0.69, 0.995),
)
_ALONG = ((0.03, 0.03), (0.08, 0.47), (0.26, 0.59), (0.57, 0.79), (0.57, 0.98))
_INSTEAD = ((0.06,),)
_USUAL: dict[_Kind, float] = {
    (name, first, second): chance
    for name, table in (("again", _AGAIN), ("along", _ALONG), ("instead", _INSTEAD))
    for first, chances in enumerate(table)
    for second, chance in enumerate(chances)
}
"""How often a guess of each kind is right: by how long the agreement is, and whether the place is the first,
goes on otherwise than the one before it, or alike; by how many of the last tokens agree with the text that
goes along, and whether the very last does. Counted in 52 answers of Gemma 3 270M to prompts that no benchmark
asks; 51 others bore it out (bench/README.md)."""

_ONCE, _CHANGED, _SAME = range(3)


@frozen
class _Candidate:
    """A token that may come next, what it is quoted from, and what it has in common with others.

    ``agreement`` is how many tokens before it are the last ones, if that is why it is quoted.
    """

    token_id: int
    start: int
    kind: _Kind
    agreement: int = 0


class PromptLookup:
    """The guesses of one sequence."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._skipped = -1  # tokens before them; below 0 as long as nothing was read
        self._answer = 0  # the first token whose guess is counted
        # Of a run of tokens: the index behind its last place, and how that went on.
        self._places: dict[tuple[int, ...], tuple[int, int]] = {}
        self._along: int | None = None  # the index of the text that goes along, for the next token
        self._instead: dict[int, int] = {}
        self._counts: dict[_Kind, tuple[float, float]] = {}

    def propose(self, token_ids: Sequence[int], most: int) -> list[tuple[int, float]]:
        """The tokens that may come next.

        Args:
            token_ids: The sequence's tokens so far: those of the last call, and more.
            most: Most tokens wanted now.

        Returns:
            At most ``most`` tokens, each with the chance that it and all before it are right; none where
            nothing is known.
        """
        if not self._read(token_ids):
            return []
        guess: list[tuple[int, float]] = []
        known, chance = len(self._tokens), 1.0
        best = self._best(self._along)
        while best is not None and len(guess) < most:
            chance *= self._chance(best.kind)
            if chance < _LEAST_CHANCE:
                break
            guess.append((best.token_id, chance))
            # It goes on as if this were so: what repeats goes on repeating, beyond the end as well.
            self._tokens.append(best.token_id)
            best = self._continued(best) or self._best(best.start + 1)
        del self._tokens[known:]
        return guess

    def _read(self, token_ids: Sequence[int]) -> bool:
        """Take in what is new; False if there is more than one call takes."""
        if self._skipped < 0:
            self._skipped = max(0, len(token_ids) - _LOOKBACK)
            self._answer = len(token_ids) - self._skipped
        start = self._skipped + len(self._tokens)
        for token_id in token_ids[start : start + _AT_ONCE]:
            index = len(self._tokens)
            if index >= self._answer - _WARM:
                self._judge(token_id, counted=index >= self._answer)
            for run in self._last_runs():
                if (before := self._places.get(run)) is None:
                    way = _ONCE
                else:
                    way = _SAME if self._tokens[before[0]] == token_id else _CHANGED
                self._places[run] = index, way
            self._tokens.append(token_id)
        return self._skipped + len(self._tokens) == len(token_ids)

    def _judge(self, token_id: int, *, counted: bool) -> None:
        """Hold what would have been guessed against what came."""
        candidates = self._candidates(self._along)
        if not candidates:
            self._along = None if self._along is None else self._along + 1
            return
        best = max(candidates, key=lambda each: self._chance(each.kind))
        if counted:
            for each in candidates:
                rights, tries = self._counts.get(each.kind, (0.0, 0.0))
                right = each.token_id == token_id
                self._counts[each.kind] = rights * _MEMORY + right, tries * _MEMORY + 1
        quoted = self._tokens[best.start]
        if quoted == token_id:
            self._instead.pop(quoted, None)
        else:
            self._instead[quoted] = token_id
        self._along = best.start + 1

    def _best(self, along: int | None) -> _Candidate | None:
        return max(self._candidates(along), key=lambda each: self._chance(each.kind), default=None)

    def _continued(self, quoted: _Candidate) -> _Candidate | None:
        """The next token of a quotation; None where another one may do better."""
        start, agreement = quoted.start + 1, quoted.agreement + 1
        token_id = self._tokens[start]
        if agreement <= _SURE or token_id in self._instead:
            return None
        return _Candidate(token_id, start, ("again", _length(agreement), quoted.kind[2]), agreement)

    def _chance(self, kind: _Kind) -> float:
        rights, tries = self._counts.get(kind, (0.0, 0.0))
        return (rights + _WEIGHT * _USUAL[kind]) / (tries + _WEIGHT)

    def _candidates(self, along: int | None) -> list[_Candidate]:
        tokens, end = self._tokens, len(self._tokens)
        repeated = self._repetition()
        candidates = [] if repeated is None else [repeated]
        if along is None or along >= end:
            return candidates
        quoted = tokens[along]
        if repeated is None or repeated.start != along:
            alike = [tokens[along - back] == tokens[end - back] for back in range(1, min(_BACK, along) + 1)]
            candidates.append(_Candidate(quoted, along, ("along", sum(alike) // 2, sum(alike[:1]))))
        if (instead := self._instead.get(quoted)) is not None:
            candidates.append(_Candidate(instead, along, ("instead", 0, 0)))
        return candidates

    def _repetition(self) -> _Candidate | None:
        """What followed where the last tokens stood before."""
        tokens, end = self._tokens, len(self._tokens)
        run = next((run for run in self._last_runs() if run in self._places), None)
        if run is None:
            return None
        place, way = self._places[run]
        agreement = len(run)
        while (
            agreement < min(place, _LONGEST) and tokens[place - agreement - 1] == tokens[end - agreement - 1]
        ):
            agreement += 1
        return _Candidate(tokens[place], place, ("again", _length(agreement), way), agreement)

    def _last_runs(self) -> list[tuple[int, ...]]:
        tokens = self._tokens
        return [tuple(tokens[-length:]) for length in _RUNS if length <= len(tokens)]


def _length(agreement: int) -> int:
    return sum(agreement > bound for bound in _BOUNDS)

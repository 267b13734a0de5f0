"""Which tokens a sequence holds, and how often its output does: what penalties are counted by.

Kept along with the sequence, token by token, so that a step costs no walk over all of it. The invariant: the
counts follow from the tokens alone, whether they came one by one or at once with a sequence that goes on.
Pure Python; the numbers lie in arrays, which kernels read in place.
"""

from array import array
from collections.abc import Iterable, Sequence

from attrs import field, frozen

__all__ = ["TokenCounts", "TokenHistory"]


def _numbers() -> "array[int]":
    return array("i")


@frozen
class TokenCounts:
    """Counts at one point of a sequence; valid until the history goes on.

    Attributes:
        seen: Tokens of prompt and output, each once (int32).
        said: Tokens of the output, each once (int32).
        times: How often the output holds each of ``said`` (int32).
    """

    seen: "array[int]" = field(factory=_numbers)
    said: "array[int]" = field(factory=_numbers)
    times: "array[int]" = field(factory=_numbers)


class TokenHistory:
    """The counts of one sequence.

    Args:
        prompt_tokens: How many of its tokens are the prompt's.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._counted = 0
        self._counts = TokenCounts()
        self._seen: set[int] = set()
        self._places: dict[int, int] = {}  # in `said`

    def counts(self, token_ids: Sequence[int], ahead: Iterable[int] = ()) -> TokenCounts:
        """Count what has been added since the last call.

        Args:
            token_ids: The sequence's, prompt and output; never fewer than before.
            ahead: Tokens that may come next: they count in this answer and are forgotten.
        """
        for place in range(self._counted, len(token_ids)):
            is_output = place >= self._prompt_tokens
            _add(self._counts, token_ids[place], self._seen, self._places, is_output=is_output)
        self._counted = len(token_ids)
        if not (ahead := tuple(ahead)):
            return self._counts
        counts = TokenCounts(self._counts.seen[:], self._counts.said[:], self._counts.times[:])
        some = set(ahead)
        seen, places = self._seen & some, {each: self._places[each] for each in some & self._places.keys()}
        for token_id in ahead:
            _add(counts, token_id, seen, places, is_output=True)
        return counts


def _add(
    counts: TokenCounts, token_id: int, seen: set[int], places: dict[int, int], *, is_output: bool
) -> None:
    if token_id not in seen:
        seen.add(token_id)
        counts.seen.append(token_id)
    if not is_output:
        return
    if (place := places.get(token_id)) is None:
        places[token_id] = len(counts.said)
        counts.said.append(token_id)
        counts.times.append(1)
    else:
        counts.times[place] += 1

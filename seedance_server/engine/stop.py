"""Finds stop strings in a text that arrives in pieces, and holds back no more of it than it must.

The rule: the output ends where the first stop string is *complete*; of several that are complete at that
character the longest wins, which is the one that starts first. So the result depends on the text alone,
never on how it was cut into pieces, and generation ends with the very token that completes a stop: nothing
waits to see whether a longer one would have matched. What is held back is the longest suffix that may still
grow into a stop.

Pure Python over `str`; it knows nothing of tokens. Costs O(characters x stops).
"""

from collections.abc import Iterable

__all__ = ["StopChecker"]


class _Automaton:
    """Knuth-Morris-Pratt matcher of one stop string: ``length`` of it are matched by the text so far."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # fallback[n]: the longest proper prefix of the stop that is also a suffix of its first n characters.
        self._fallback = [0, 0]
        for char in stop[1:]:
            self._fallback.append(self._next(self._fallback[-1], char))

    def _next(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._fallback[length]
        return length + (self.stop[length] == char)

    def advance(self, char: str) -> bool:
        """Reads one character; true if the stop is now complete."""
        self.length = self._next(self.length, char)
        return self.length == len(self.stop)


class StopChecker:
    """Watches one output for its stop strings.

    Args:
        stops: Non-empty strings. None of them appears in what `push` and `flush` return.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        # Longest first, so that of the stops that end at the same character the longest is found.
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes the next piece of the output.

        Args:
            text: Any number of characters.

        Returns:
            What may be shown now, and the stop string if one is complete. After a match the output is over:
            the rest of the piece is gone and every later call returns ``("", that stop)``.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._automata:
            return text, None
        start = len(self._held)
        self._held += text
        for end, char in enumerate(text, start + 1):
            complete = [automaton for automaton in self._automata if automaton.advance(char)]
            if complete:
                self._matched = complete[0].stop
                shown, self._held = self._held[: end - len(self._matched)], ""
                return shown, self._matched
        keep = len(self._held) - max(automaton.length for automaton in self._automata)
        shown, self._held = self._held[:keep], self._held[keep:]
        return shown, None

    def flush(self) -> str:
        """Ends the output without a match and returns what was held back; empty after a match."""
        held, self._held = self._held, ""
        return held

"""The times of one answer: from its frames to what `LatencySeries` counts, by exact definitions.

A gap lies between two tokens that arrived one after the other over one connection. What else stretches or
squeezes it is told apart: after a lost connection the time until tokens come again is an outage, and what the
server had made meanwhile, and sends at once, are late tokens; where this side takes pieces so slowly that the
server holds back, tokens are paced. Frames without tokens are no event. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

from seedance_sdk.latency_series import LatencySeries, Outcome

__all__ = ["AnswerTimes"]


class AnswerTimes:
    """Watches one request from its call to its end.

    Args:
        series: Gives what to count into, asked at each event: an answer may move to another endpoint.
        asked_at: When the caller called, on the clock of the other times.
        resumed: Whether another reader had the beginning of it, so that only gaps can be told.

    Attributes:
        series: As given; may be replaced.
    """

    def __init__(
        self, series: Callable[[], LatencySeries], asked_at: float, *, resumed: bool = False
    ) -> None:
        self.series = series
        self._asked_at = self._first_at = self._seen_at = asked_at  # the last two: of the tokens that came
        self._tokens = 0
        self._even = False  # the next tokens end a gap that began with the last ones
        self._spoilt = resumed  # its whole time is not the server's alone
        self._late_until = 0  # frames up to this one were made while nobody listened
        self._cut_from: float | None = None  # the last tokens before the connection was lost, while none come
        self._interrupted = False
        self._slow = self._paced = False  # the server holds back; and did, since the last tokens
        self._over = False

    def arrived(self, frame_id: int, tokens: int, now: float) -> None:
        """A frame with so many tokens arrived."""
        if not tokens:
            return
        if self._even:
            self.series().next(now - self._seen_at, tokens)
        elif self._tokens or self._spoilt or frame_id <= self._late_until:
            self._arrived_oddly(frame_id, tokens, now)
        else:
            self.series().first(now - self._asked_at, tokens)
            self._first_at = now
            self._even = True
        self._tokens += tokens
        self._seen_at = now

    def _arrived_oddly(self, frame_id: int, tokens: int, now: float) -> None:
        series = self.series()
        if self._paced and self._cut_from is None:
            series.paced(tokens)
        else:
            series.late(tokens)
        if self._cut_from is not None:
            series.restored(now - self._cut_from)
            self._cut_from = None
        self._spoilt = True
        self._even = frame_id > self._late_until and not self._slow
        self._paced = self._slow

    def disconnected(self) -> None:
        """The connection was lost, or once more could not be made."""
        if self._over:
            return
        if self._cut_from is None:
            self._cut_from = self._seen_at
        self._even = self._slow = self._paced = False
        self._spoilt = True
        if not self._interrupted:
            self._interrupted = True
            self.series().interrupted()

    def goes_on(self, last_id: int) -> None:
        """The server goes on with it, and has frames up to this one ready."""
        self._late_until = last_id

    def held_back(self, slow: bool) -> None:
        """The server goes slower, as pieces are not taken; or no more."""
        self._slow = slow
        self._even = False
        self._paced = self._spoilt = True

    def ended(self, outcome: Outcome | None) -> None:
        """It is over, or None where somebody else reads on; the first call counts."""
        if self._over:
            return
        self._over = True
        if outcome is None:
            return
        total_s = tpot_s = None
        if outcome is Outcome.FINISHED and self._tokens and not self._spoilt:
            total_s = self._seen_at - self._asked_at
            if self._tokens > 1:
                tpot_s = (self._seen_at - self._first_at) / (self._tokens - 1)
        self.series().ended(outcome, total_s, tpot_s)

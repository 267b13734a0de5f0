"""The times of one answer: from its frames to what `LatencySeries` counts, by exact definitions.

A gap lies between two tokens that arrived one after the other over one connection. What a lost connection
stretched or squeezed is told apart: the time until tokens come again is an outage, and what the server had
made meanwhile, and sends at once, are late tokens. So an outage never looks like a slow token, nor its
replay like fast ones. Frames without tokens are no event. The time is an argument.
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
    """

    __slots__ = (
        "_asked_at",
        "_cut_from",
        "_even",
        "_first_at",
        "_interrupted",
        "_late_until",
        "_over",
        "_resumed",
        "_seen_at",
        "_series",
        "_tokens",
    )

    def __init__(
        self, series: Callable[[], LatencySeries], asked_at: float, *, resumed: bool = False
    ) -> None:
        self._series = series
        self._asked_at = self._first_at = self._seen_at = asked_at  # the last two: of the tokens that came
        self._tokens = 0
        self._even = False  # the next tokens end a gap that began with the last ones
        self._late_until = 0  # frames up to this one were made while there was no connection
        self._cut_from: float | None = None  # the last tokens before the connection was lost, while none come
        self._interrupted = False
        self._resumed = resumed
        self._over = False

    def arrived(self, frame_id: int, tokens: int, now: float) -> None:
        """A frame with so many tokens arrived."""
        if not tokens:
            return
        if self._even:
            self._series().next(now - self._seen_at, tokens)
        elif not (self._tokens or self._interrupted or self._resumed):
            self._series().first(now - self._asked_at, tokens)
            self._first_at = now
            self._even = True
        else:
            self._arrived_late(frame_id, tokens, now)
        self._tokens += tokens
        self._seen_at = now

    def _arrived_late(self, frame_id: int, tokens: int, now: float) -> None:
        series = self._series()
        if self._cut_from is not None:
            series.restored(now - self._cut_from)
            self._cut_from = None
        series.late(tokens)
        self._even = frame_id > self._late_until

    def disconnected(self) -> None:
        """The connection was lost, or once more could not be made."""
        if self._over:
            return
        if self._cut_from is None:
            self._cut_from = self._seen_at
        self._even = False
        if not self._interrupted:
            self._interrupted = True
            self._series().interrupted()

    def goes_on(self, last_id: int) -> None:
        """The server goes on with it, and has frames up to this one ready."""
        self._late_until = last_id

    def ended(self, outcome: Outcome) -> None:
        """It is over; the first call counts."""
        if self._over:
            return
        self._over = True
        total_s = tpot_s = None
        if outcome is Outcome.FINISHED and self._tokens and not (self._interrupted or self._resumed):
            total_s = self._seen_at - self._asked_at
            if self._tokens > 1:
                tpot_s = (self._seen_at - self._first_at) / (self._tokens - 1)
        self._series().ended(outcome, total_s, tpot_s)

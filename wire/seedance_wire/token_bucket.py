"""A token bucket: so many at once, so many a second after that. Pure: it is told the time."""

from __future__ import annotations

__all__ = ["TokenBucket"]


_ROUNDING = 1e-6
"""Who waited as long as `TokenBucket.wait_s` said must find one, whatever the sums were rounded to."""


class TokenBucket:
    """Says whether one more event is within the rate.

    Args:
        rate: Events a second that are always allowed.
        burst: Events at once that are allowed after a rest; also the most that is ever saved up.
        now_s: Seconds on any clock that doesn't go back, the same one as for `take`.
    """

    __slots__ = ("_burst", "_rate", "_saved", "_updated_s")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._saved = burst
        self._updated_s = now_s

    def take(self, now_s: float) -> bool:
        """Takes one if there is one; False, and nothing taken, if the event is over the rate."""
        if self.wait_s(now_s) > 0:
            return False
        self._saved -= 1
        return True

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until there is one to take; 0 if there is now."""
        self._saved = min(self._burst, self._saved + (now_s - self._updated_s) * self._rate)
        self._updated_s = now_s
        missing = 1 - self._saved
        return missing / self._rate if missing > _ROUNDING else 0.0

"""A token bucket: so many at once, so many a second after that. Pure: it is told the time."""

from __future__ import annotations

__all__ = ["TokenBucket"]


_ROUNDING = 1e-6
"""Who waited as long as `TokenBucket.wait_s` said must find one, whatever the sums were rounded to."""


class TokenBucket:
    """Says whether something is within the rate: an event, or an amount of anything.

    Args:
        rate: What is always allowed a second.
        burst: What is allowed at once after a rest; also the most that is ever saved up.
        now_s: Seconds on any clock that doesn't go back, the same one as for `take`.
    """

    __slots__ = ("_burst", "_rate", "_saved", "_updated_s")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._saved = burst
        self._updated_s = now_s

    def take(self, now_s: float, amount: float = 1.0) -> bool:
        """Takes ``amount`` if it is there; False, and nothing taken, if it is over the rate.

        An amount above the burst is taken from a full bucket, which then owes the rest.
        """
        if self.wait_s(now_s, amount) > 0:
            return False
        self._saved -= amount
        return True

    def wait_s(self, now_s: float, amount: float = 1.0) -> float:
        """Returns the seconds until there is ``amount`` to take, for 0 until nothing is owed; 0 for now."""
        self._settle(now_s)
        missing = min(amount, self._burst) - self._saved
        return missing / self._rate if missing > _ROUNDING else 0.0

    def charge(self, now_s: float, amount: float) -> None:
        """Takes ``amount`` whether it is there or not; with a negative one, gives back what wasn't used."""
        self._settle(now_s)
        self._saved -= amount

    def change(self, now_s: float, rate: float, burst: float) -> None:
        """Goes on at another rate from now on; what was saved above the new burst is gone."""
        self._settle(now_s)
        self._rate = rate
        self._burst = burst

    def _settle(self, now_s: float) -> None:
        """Before every look at what is saved: adds what has come, and drops what is above the burst."""
        self._saved = min(self._burst, self._saved + (now_s - self._updated_s) * self._rate)
        self._updated_s = now_s

"""Quotas that move with the load (S25): what a tenant may take a second or a minute, and what it took. Pure.

    quota = clamp(base x (1 + 0.5 x max(cpu, net)), min, max)

Taking is reserving: what turns out not to be used goes back, what was used beyond it is owed, and nothing
more is given until that is paid. The clock and the load are told; neither is read here.

It must not know tenants' requests or connections.
"""

from __future__ import annotations

from attrs import frozen

from seedance_server.tenants import Rate
from seedance_wire.token_bucket import TokenBucket

__all__ = ["Load", "Quota", "dynamic_quota"]

_SLOPE = 0.5


@frozen
class Load:
    """How busy the machine is, each from 0 to 1.

    Attributes:
        cpu: What computes: processors, or the accelerator where that is busier.
        net: The network.
    """

    cpu: float = 0.0
    net: float = 0.0


def dynamic_quota(rate: Rate, load: Load) -> float:
    """What a quota comes to under a load (S25); a load outside 0 to 1 counts as the nearer end."""
    busiest = min(1.0, max(0.0, load.cpu, load.net))
    return min(rate.most, max(rate.least, rate.base * (1 + _SLOPE * busiest)))


class Quota:
    """One quota of one tenant; without a rate it gives whatever is asked for.

    Args:
        period_s: Seconds that the rate is for; as much as comes in one may be taken at once.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._rate: Rate | None = None
        self._load = Load()
        self._bucket: TokenBucket | None = None

    @property
    def current(self) -> float | None:
        """What may be taken in a period just now; None for whatever is asked for."""
        return None if self._rate is None else dynamic_quota(self._rate, self._load)

    def hold_to(self, rate: Rate | None, now_s: float) -> None:
        """Goes on at another rate."""
        self._rate = rate
        self._adjust(now_s)

    def note_load(self, load: Load, now_s: float) -> None:
        """Goes on under another load."""
        self._load = load
        self._adjust(now_s)

    def _adjust(self, now_s: float) -> None:
        current = self.current
        if current is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(current / self._period_s, current, now_s)
        else:
            self._bucket.change(now_s, current / self._period_s, current)

    def take(self, amount: float, now_s: float) -> float:
        """Takes ``amount``; returns 0, or the seconds until it can be taken, and nothing was taken."""
        if self._bucket is None or self._bucket.take(now_s, amount):
            return 0.0
        return self._bucket.wait_s(now_s, amount)

    def charge(self, amount: float, now_s: float) -> None:
        """Takes what was used already; a negative amount goes back."""
        if self._bucket is not None:
            self._bucket.charge(now_s, amount)

    def debt_s(self, now_s: float) -> float:
        """Seconds until nothing is owed."""
        return 0.0 if self._bucket is None else self._bucket.wait_s(now_s, 0.0)

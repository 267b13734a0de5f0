"""Failed attempts to show a key, counted, so that guessing is slow. Pure: it is told the time.

Whoever fails more often than the rate allows is turned away for a while, and twice as long each time after
that. What is remembered is bounded; whoever hasn't failed for the longest time is forgotten first.

It must not know keys, addresses or HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from attrs import define

from seedance_wire.token_bucket import TokenBucket

__all__ = ["GuessLimiter"]

_FAILURES_A_MINUTE = 10
"""A person or script with a stale key stays below; a search for one gets nowhere."""
_FIRST_BLOCK_S = 60.0
_LONGEST_BLOCK_S = 900.0
_REMEMBERED = 10_000
"""Names that are remembered; about 2 MB."""


@define
class _Record:
    failures: TokenBucket
    block_s: float = _FIRST_BLOCK_S
    blocked_until_s: float = 0.0


class GuessLimiter:
    """Counts failures by name: an address, an address and a key's id, whatever can be hashed."""

    def __init__(self) -> None:
        self._records: OrderedDict[Hashable, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def blocked_s(self, name: Hashable, now_s: float) -> float:
        """Seconds for which this one is still turned away; 0 if it isn't."""
        record = self._records.get(name)
        return 0.0 if record is None else max(0.0, record.blocked_until_s - now_s)

    def note_failure(self, name: Hashable, now_s: float) -> float:
        """Counts a failure; returns the seconds for which this one is turned away from now on."""
        record = self._records.get(name)
        if record is None or now_s >= record.blocked_until_s + _LONGEST_BLOCK_S:
            # Long enough ago: as if it were the first time.
            record = self._records[name] = _Record(
                TokenBucket(_FAILURES_A_MINUTE / 60, _FAILURES_A_MINUTE, now_s), blocked_until_s=now_s
            )
        self._records.move_to_end(name)
        while len(self._records) > _REMEMBERED:
            self._records.popitem(last=False)
        if (left_s := record.blocked_until_s - now_s) > 0:
            return left_s  # a failure while turned away makes it no longer: it wasn't looked at
        if record.failures.take(now_s):
            return 0.0
        record.blocked_until_s = now_s + record.block_s
        record.block_s = min(2 * record.block_s, _LONGEST_BLOCK_S)
        return record.blocked_until_s - now_s

    def note_success(self, name: Hashable) -> None:
        """This one is who it says: nothing is held against it."""
        self._records.pop(name, None)

"""When each of many connections is due for a heartbeat (S14): lazily, with one timer for all of them.

A connection is looked at when it may have been silent for long enough, not whenever something comes: what it
does meanwhile costs nothing here. At the look it is either due, or looked at again when it would be. So each
connection is looked at once in a silence at most, and nobody ever walks over all of them. It is told the
time, and asks when a connection was last heard; it must not know what a connection is.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

__all__ = ["HeartbeatSchedule"]

_Connection = TypeVar("_Connection")


class HeartbeatSchedule(Generic[_Connection]):
    """Says which connections are due.

    Times are seconds on any clock that does not go back, the same one for all calls.

    Args:
        silence_s: So long a connection may be silent.
        heard_s: When something last came from a connection.
    """

    def __init__(self, silence_s: float, heard_s: Callable[[_Connection], float]) -> None:
        self._silence_s = silence_s
        self._heard_s = heard_s
        self._looks: list[tuple[float, int, _Connection]] = []  # a heap; the number settles ties
        self._numbers: dict[_Connection, int] = {}  # of the one look that counts
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, connection: _Connection, now_s: float) -> None:
        """Takes a connection, which counts as heard now."""
        self._last_number += 1
        self._numbers[connection] = self._last_number
        heappush(self._looks, (now_s + self._silence_s, self._last_number, connection))

    def remove(self, connection: _Connection) -> None:
        """Forgets a connection; nothing if it is not here."""
        self._numbers.pop(connection, None)
        if len(self._looks) > 2 * len(self._numbers) + 16:  # what was left behind stays a fraction
            self._looks = sorted(look for look in self._looks if self._numbers.get(look[2]) == look[1])

    def next_look_s(self) -> float:
        """When to ask `due` again; infinity if there is no connection. Some looks find nobody due."""
        return self._looks[0][0] if self._looks else float("inf")

    def due(self, now_s: float) -> list[_Connection]:
        """Returns the connections that were silent for long enough, and forgets them until they are added."""
        found = []
        while self._looks and self._looks[0][0] <= now_s:
            _, number, connection = heappop(self._looks)
            if self._numbers.get(connection) != number:
                continue  # removed, or added again since
            look_s = self._heard_s(connection) + self._silence_s
            if look_s <= now_s:
                del self._numbers[connection]
                found.append(connection)
            else:
                heappush(self._looks, (look_s, number, connection))
        return found

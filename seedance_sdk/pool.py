"""Which connection carries the next request, and which one nobody needs any more (S29), pure.

Many conversations share few connections: a request goes to the fullest that has room, so that others run
empty, and only where none has room is another made, up to a bound. One that carries nothing for a while is
due to be closed; heartbeats are no use of it. No lock: it is used from one loop. The time is an argument, and
what a connection carries is asked of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from attrs import frozen

__all__ = ["Pool", "PoolMember", "PoolStatistics"]


class PoolMember(Protocol):
    """A session, as its pool sees it."""

    @property
    def accepts_requests(self) -> bool:
        """Whether it takes new ones."""

    @property
    def load(self) -> int:
        """What it carries: requests, streams, reports on their way."""

    @property
    def capacity(self) -> int:
        """How much it can."""

    @property
    def connected(self) -> bool:
        """Whether it has a connection; without one it makes one as soon as it carries something."""


M = TypeVar("M", bound=PoolMember)


@frozen(kw_only=True)
class PoolStatistics:
    """A client's connections.

    Attributes:
        connections: Open ones, and those being opened for somebody.
        idle: Open ones that carry nothing.
        sessions: All that are kept, with a connection or without.
        load: Requests, streams and reports that they carry.
        opened: Sessions begun so far.
        closed_idle: Connections closed so far since nobody needed them.
    """

    connections: int
    idle: int
    sessions: int
    load: int
    opened: int
    closed_idle: int


class Pool(Generic[M]):
    """The sessions of one client, the oldest first.

    Args:
        max_connections: At once.
        idle_s: How long one may carry nothing.
    """

    def __init__(self, max_connections: int, idle_s: float) -> None:
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._members: list[M] = []
        self._idle_since: dict[M, float] = {}
        self._opened = 0
        self._closed_idle = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(self._members)

    def add(self, member: M) -> None:
        """There is another; ask `may_open` first."""
        self._members.append(member)
        self._opened += 1

    def remove(self, member: M) -> None:
        """It is gone."""
        self._members.remove(member)
        self._idle_since.pop(member, None)

    @property
    def may_open(self) -> bool:
        """Whether there may be another connection."""
        return sum(map(_takes_up_a_connection, self._members)) < self._max_connections

    def choose(self) -> M | None:
        """Returns where the next request goes, or None for a new one, or to wait where there may be none.

        It goes where there is room; where there is none, and may be no other, to the shortest line.
        """
        ready = [member for member in self._members if member.accepts_requests]
        if not self.may_open:
            ready = [member for member in ready if _takes_up_a_connection(member)]
        with_room = [member for member in ready if member.load < member.capacity]
        if with_room:
            return max(with_room, key=lambda member: (member.load, member.connected))
        if self.may_open or not ready:
            return None
        return min(ready, key=lambda member: member.load / max(1, member.capacity))

    # ---- idle ones

    def note(self, now_s: float) -> None:
        """Something has changed: a request came or ended, a connection was made or lost."""
        for member in self._members:
            if member.connected and not member.load:
                self._idle_since.setdefault(member, now_s)
            else:
                self._idle_since.pop(member, None)

    def due(self, now_s: float) -> list[M]:
        """Returns those whose connection is to be closed now, each once."""
        due = [member for member, since_s in self._idle_since.items() if since_s + self._idle_s <= now_s]
        self._closed_idle += len(due)
        for member in due:
            del self._idle_since[member]
        return due

    @property
    def next_due_s(self) -> float:
        """When to ask `due` again, unless something changes; infinite while none is idle."""
        return min(self._idle_since.values(), default=math.inf) + self._idle_s

    def spare(self) -> M | None:
        """Returns the one that was idle for longest, to make room for another; or None."""
        if not self._idle_since:
            return None
        self._closed_idle += 1
        member = min(self._idle_since, key=self._idle_since.__getitem__)
        del self._idle_since[member]
        return member

    # ---- numbers

    def statistics(self) -> PoolStatistics:
        """What there is now, and what was. Any thread may ask."""
        members = tuple(self._members)
        return PoolStatistics(
            connections=sum(map(_takes_up_a_connection, members)),
            idle=sum(member.connected and not member.load for member in members),
            sessions=len(members),
            load=sum(member.load for member in members),
            opened=self._opened,
            closed_idle=self._closed_idle,
        )


def _takes_up_a_connection(member: PoolMember) -> bool:
    return member.connected or member.load > 0

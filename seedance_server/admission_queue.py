"""Whose request goes to the engine next, and who waits for what. Pure: it is told the time.

The rules:

1. **A tenant's requests go in the order in which they came**; one that was in the engine before (parked,
   preempted by a restart) goes first among its own.
2. **What fits goes.** As long as the requests in the engine leave a row in its batch and blocks for one more,
   the next one is of the tenant that was given the fewest blocks for its weight. If that one doesn't fit,
   nobody passes it: else the large would starve.
3. **A few of each tenant go ahead of the room**, so that the engine always has one of everybody's to choose
   from: its own queue shares steps and blocks out by weight, class and real tokens, and this one only keeps
   it short.

So nobody waits for ever: of each tenant's the first one goes at the latest when one before it has begun, and
the engine begins those that it has. A generation that its reader holds up (resting) takes no room here.

It must not know engines, streams or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field, frozen

__all__ = ["AdmissionQueue", "QueueStatistics", "Ticket"]

_MEMORY = 0.2
"""Weight of the newest interval between two turns in their average."""


def _never() -> bool:
    return False


def _nothing() -> None:
    return


@define(eq=False)
class Ticket:
    """One request's place.

    Attributes:
        tenant: Whose it is.
        weight: The tenant's.
        blocks: What it will hold of the engine's KV pool, as far as that can be said.
        joined_s: When it came.
        is_returning: It was in the engine before.
        is_resting: Asked whether it takes no part in steps just now.
        on_turn: Called when it may go to the engine.
        is_granted: Whether it may.
        has_started: Whether the engine has begun with it.
    """

    tenant: str
    weight: float
    blocks: int
    joined_s: float
    is_returning: bool = False
    is_resting: Callable[[], bool] = _never
    on_turn: Callable[[], None] = _nothing
    is_granted: bool = field(default=False, init=False)
    has_started: bool = field(default=False, init=False)


@define(eq=False)
class _Line:
    """One tenant's: who waits, who of its requests the engine has not begun with, and what it was given."""

    waiting: deque[Ticket] = field(factory=deque)
    ahead: int = 0
    granted: int = 0
    given: float = 0.0


@frozen
class QueueStatistics:
    """What there is now.

    Attributes:
        waiting: Requests that wait for their turn.
        granted: Requests that had it and aren't over.
        started: Those of them that the engine has begun with.
        running: Those of these that their reader doesn't hold up.
        blocks: Blocks that those count for which take part in steps.
        turns: Turns given so far.
    """

    waiting: int
    granted: int
    started: int
    running: int
    blocks: int
    turns: int


class AdmissionQueue:
    """Requests of all tenants on their way to the engine.

    Args:
        sequences: Rows in the engine's batch.
        blocks: Blocks in its KV pool.
        ahead: Requests of one tenant that may be in the engine beyond what fits.
    """

    def __init__(self, *, sequences: int, blocks: int, ahead: int) -> None:
        self._sequences = sequences
        self._blocks = blocks
        self._ahead = ahead
        self._lines: dict[str, _Line] = {}
        self._granted: dict[Ticket, None] = {}
        self._turns = 0
        self._level = 0.0
        self._last_turn_s: float | None = None
        self._interval_s: float | None = None

    def statistics(self) -> QueueStatistics:
        """What there is now."""
        return QueueStatistics(
            waiting=sum(len(line.waiting) for line in self._lines.values()),
            granted=len(self._granted),
            started=sum(ticket.has_started for ticket in self._granted),
            running=sum(ticket.has_started and not ticket.is_resting() for ticket in self._granted),
            blocks=self._in_use()[1],
            turns=self._turns,
        )

    def waiting(self) -> tuple[Ticket, ...]:
        """Who waits, each tenant's in order."""
        return tuple(ticket for line in self._lines.values() for ticket in line.waiting)

    def join(self, ticket: Ticket, now_s: float) -> None:
        """Takes a request in; it may have its turn at once."""
        line = self._lines.setdefault(ticket.tenant, _Line())
        if not line.waiting:
            # Who comes new, or back, starts level with the others: rest earns no claim on the future.
            line.given = max(line.given, self._level)
        if ticket.is_returning:
            line.waiting.appendleft(ticket)
        else:
            line.waiting.append(ticket)
        self.advance(now_s)

    def note_started(self, ticket: Ticket, now_s: float) -> None:
        """The engine has begun with it; safe to repeat."""
        if ticket.is_granted and not ticket.has_started:
            ticket.has_started = True
            self._lines[ticket.tenant].ahead -= 1
            self.advance(now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """It is over, or doesn't want its turn any more."""
        line = self._lines[ticket.tenant]
        if ticket.is_granted:
            del self._granted[ticket]
            line.granted -= 1
            line.ahead -= not ticket.has_started
        else:
            line.waiting.remove(ticket)
        if not line.waiting and not line.granted:
            del self._lines[ticket.tenant]
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Gives turns to all who may have one; also to be called when a generation rests or goes on."""
        sequences, blocks = self._in_use()
        while (line := self._neediest()) is not None:
            head = line.waiting[0]
            fits = sequences < self._sequences and blocks + head.blocks <= self._blocks
            if sequences and not fits:
                break
            self._grant(line, now_s)
            sequences += 1
            blocks += head.blocks
        for line in self._lines.values():
            while line.waiting and line.ahead < self._ahead:
                self._grant(line, now_s)
        if not any(line.waiting for line in self._lines.values()):
            self._last_turn_s = None  # turns are as far apart as requests now, not as the engine is slow

    def _in_use(self) -> tuple[int, int]:
        active = [ticket for ticket in self._granted if not ticket.is_resting()]
        return len(active), sum(ticket.blocks for ticket in active)

    def _neediest(self) -> _Line | None:
        lines = [line for line in self._lines.values() if line.waiting]
        return min(lines, key=lambda line: line.given, default=None)

    def _grant(self, line: _Line, now_s: float) -> None:
        ticket = line.waiting.popleft()
        ticket.is_granted = True
        self._granted[ticket] = None
        line.granted += 1
        line.ahead += 1
        self._level = max(self._level, line.given)
        line.given += ticket.blocks / ticket.weight
        self._turns += 1
        if self._last_turn_s is not None:
            interval_s = now_s - self._last_turn_s
            before_s = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = before_s + _MEMORY * (interval_s - before_s)
        self._last_turn_s = now_s
        ticket.on_turn()

    def position(self, ticket: Ticket) -> int:
        """How many requests will have their turn before it, as far as that can be said."""
        own = self._lines[ticket.tenant].waiting.index(ticket)
        others = sum(
            min(len(line.waiting), int((own + 1) * line.waiting[0].weight / ticket.weight))
            for tenant, line in self._lines.items()
            if tenant != ticket.tenant and line.waiting
        )
        return own + others

    def estimated_wait_s(self, position: int) -> float | None:
        """Seconds until a request at this position has its turn; None before that can be told."""
        return None if self._interval_s is None else (position + 1) * self._interval_s

"""Operations on their way to the writer: bounded, in order, many to a commit.

Whoever puts one in sleeps until it is durable. It may be taken back by a cancellation as long as the writer
hasn't taken it; from then on the caller waits for the outcome, so "cancelled" always means "not written".

It must not know SQLite, nor what an operation does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import trio
from attrs import define

from seedance_server.journal.errors import JournalOverloaded
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.operation import Operation, Outcome

__all__ = ["CommitQueue", "Ticket", "settle_all"]

_AT_ONCE = 8
"""Callers that go on in the same turn of the event loop: each may have a stream to start, for some 0.3 ms."""


@define(eq=False)
class Ticket:
    """Operations that came together, and the task that waits for them.

    Attributes:
        done: Called in the task's context, before it goes on, with what a single operation returned.
    """

    operations: Sequence[Operation]
    rows: int
    size: int
    task: trio.lowlevel.Task
    done: Callable[[Any], None] | None = None
    outcomes: Sequence[Outcome] | None = None

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Wakes the waiting task, once, with an outcome for each."""
        assert self.outcomes is None, "settled twice"  # noqa: S101
        self.outcomes = outcomes
        if self.done is not None and outcomes[0].error is None:
            try:
                self.task.context.run(self.done, outcomes[0].value)
            except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
                self.outcomes = [Outcome(error=error)]
        trio.lowlevel.reschedule(self.task)


async def settle_all(tickets: Sequence[Ticket], outcomes: Iterable[Outcome]) -> None:
    """Wakes whoever waits for ``tickets``, in order and a few in each turn of the event loop.

    Args:
        tickets: Of one commit.
        outcomes: Of all their operations, in order.
    """
    settled = iter(outcomes)
    for number, ticket in enumerate(tickets, 1):
        ticket.settle(list(islice(settled, len(ticket.operations))))
        if number % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()


class CommitQueue:
    """Between the tasks that write and the one that commits.

    Args:
        limits: Bounds.
    """

    def __init__(self, limits: JournalLimits) -> None:
        self._limits = limits
        self._tickets: deque[Ticket] = deque()
        self._room = trio.lowlevel.ParkingLot()
        self._arrival = trio.Event()
        self._full_commit = trio.Event()
        self._refuse: Callable[[], Exception] | None = None
        self.rows = 0
        self.size = 0
        self.unsettled = 0

    @property
    def waiting(self) -> int:
        """Callers that wait for room."""
        return len(self._room)

    def open(self) -> None:
        """Lets operations in."""
        self._refuse = None

    def close(self, refuse: Callable[[], Exception]) -> None:
        """Lets none in any more, but raises what ``refuse`` makes; those that wait get one each as well."""
        self._refuse = refuse
        while self._tickets:
            ticket = self._pop()
            ticket.settle([Outcome(error=refuse()) for _ in ticket.operations])
        self._room.unpark_all()

    async def put(self, operation: Operation, done: Callable[[Any], None] | None = None) -> Any:
        """Waits until ``operation`` is durable; returns what it returned or raises what it raised.

        Args:
            operation: What to do.
            done: Called with what is returned, in the order in which operations were done, before the caller
                goes on; others of a large commit may have gone on by then. What it raises is raised here.

        Raises:
            JournalOverloaded, Exception: As from `put_all`.

        If cancelled, the operation wasn't written; one that is being written when the cancellation comes is
        completed and returns.
        """
        (outcome,) = await self._put((operation,), done)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def put_all(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        """Waits until all ``operations`` have their outcome, in one commit; cancellation is as in `put`.

        Raises:
            JournalOverloaded: There was no room for ``queue_timeout_s``.
            Exception: What `close` was given.
        """
        return await self._put(operations, None)

    async def _put(
        self, operations: Sequence[Operation], done: Callable[[Any], None] | None
    ) -> Sequence[Outcome]:
        await trio.lowlevel.checkpoint_if_cancelled()
        rows, size = sum(each.rows for each in operations), sum(each.size for each in operations)
        ticket = Ticket(operations, rows, size, trio.lowlevel.current_task(), done)
        if self._room or not self._fits(ticket):
            await self._wait_for_room(ticket)
        if self._refuse is not None:
            raise self._refuse()
        self._tickets.append(ticket)
        self.rows += rows
        self.size += size
        self._arrival.set()
        if self.rows >= self._limits.commit_rows:
            self._full_commit.set()

        def take_back(_: object) -> trio.lowlevel.Abort:
            if ticket not in self._tickets:
                return trio.lowlevel.Abort.FAILED
            self._tickets.remove(ticket)
            self._left(ticket)
            return trio.lowlevel.Abort.SUCCEEDED

        self.unsettled += len(operations)
        try:
            await trio.lowlevel.wait_task_rescheduled(take_back)
        finally:
            self.unsettled -= len(operations)
        assert ticket.outcomes is not None  # noqa: S101 - nothing else wakes it
        return ticket.outcomes

    def _fits(self, ticket: Ticket) -> bool:
        if self._refuse is not None or not self._tickets:
            return True  # what is larger than the whole queue goes alone
        return (
            self.rows + ticket.rows <= self._limits.queued_rows
            and self.size + ticket.size <= self._limits.queued_bytes
        )

    async def _wait_for_room(self, ticket: Ticket) -> None:
        timeout_s = self._limits.queue_timeout_s
        with trio.move_on_after(timeout_s):
            await self._room.park()  # once behind those who came earlier, then as long as it takes
            while not self._fits(ticket):
                await self._room.park()
            return
        raise JournalOverloaded(timeout_s)

    def _left(self, ticket: Ticket) -> None:
        self.rows -= ticket.rows
        self.size -= ticket.size
        self._room.unpark_all()

    def _pop(self) -> Ticket:
        ticket = self._tickets.popleft()
        self._left(ticket)
        return ticket

    async def take(self) -> list[Ticket]:
        """Waits for operations and then a little for company; returns what belongs into the next commit.

        If cancelled, nothing was taken.
        """
        while True:
            while not self._tickets:
                self._arrival = trio.Event()
                await self._arrival.wait()
            if self._limits.commit_interval_s > 0 and self.rows < self._limits.commit_rows:
                self._full_commit = trio.Event()
                with trio.move_on_after(self._limits.commit_interval_s):
                    await self._full_commit.wait()
            else:
                await trio.lowlevel.checkpoint()
            if self._tickets:  # or all were taken back meanwhile
                break
        taken: list[Ticket] = []
        rows = 0
        while self._tickets and (not taken or rows + self._tickets[0].rows <= self._limits.commit_rows):
            ticket = self._pop()
            rows += ticket.rows
            taken.append(ticket)
        return taken

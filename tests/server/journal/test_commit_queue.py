"""The queue before the writer: bounded, in order, and honest about what was written."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from seedance_server.journal.commit_queue import CommitQueue, settle_all
from seedance_server.journal.errors import JournalClosed, JournalOverloaded
from seedance_server.journal.operation import Operation, Outcome
from tests.server.journal.journal_made import LIMITS


def _operation(rows: int = 1, size: int = 0) -> Operation:
    return Operation(lambda transaction: None, rows=rows, size=size)


async def test_commit_holds_what_fits_in_order():
    """First come, first committed, up to the limit of rows; one that is larger goes alone."""
    queue = CommitQueue(evolve(LIMITS, commit_rows=4))
    async with trio.open_nursery() as nursery:
        for rows in (2, 2, 1, 9, 1):
            nursery.start_soon(queue.put, _operation(rows))
            await wait_all_tasks_blocked()
        taken = []
        while queue.rows:
            tickets = await queue.take()
            taken.append([ticket.rows for ticket in tickets])
            for ticket in tickets:
                ticket.settle([Outcome("done")])
    assert taken == [[2, 2], [1], [9], [1]]


async def test_outcome_reaches_its_task():
    """Each caller gets its own value or error."""
    queue = CommitQueue(LIMITS)
    results = []

    async def put(number: int) -> None:
        try:
            results.append((number, await queue.put(_operation(number))))
        except ValueError as error:
            results.append((number, str(error)))

    async with trio.open_nursery() as nursery:
        for number in (1, 2):
            nursery.start_soon(put, number)
        await wait_all_tasks_blocked()
        for ticket in await queue.take():
            rows = ticket.rows
            ticket.settle([Outcome("value") if rows == 1 else Outcome(error=ValueError("bad"))])
    assert sorted(results) == [(1, "value"), (2, "bad")]


async def test_what_came_together_is_committed_together():
    """One task waits for all of it, and learns of each what became of it."""
    queue = CommitQueue(evolve(LIMITS, commit_rows=4))
    outcomes = []

    async def put_all() -> None:
        outcomes.extend(await queue.put_all([_operation(), _operation(2), _operation()]))

    async with trio.open_nursery() as nursery:
        for put in (partial(queue.put, _operation()), put_all, partial(queue.put, _operation())):
            nursery.start_soon(put)
            await wait_all_tasks_blocked()
        assert (queue.rows, queue.unsettled) == (6, 5)
        for expected in (1, 3, 1):
            (ticket,) = await queue.take()
            assert len(ticket.operations) == expected
            ticket.settle([Outcome(number) for number in range(expected)])
    assert [outcome.value for outcome in outcomes] == [0, 1, 2]
    assert (queue.rows, queue.unsettled) == (0, 0)


async def test_few_callers_go_on_in_one_turn_of_the_loop():
    """A commit of many requests must not hold up everybody's tokens: each has a stream to start."""
    queue = CommitQueue(LIMITS)
    done: list[int] = []
    turns: list[int] = []
    went_on: list[tuple[int, list[int]]] = []

    async def put() -> None:
        went_on.append((await queue.put(_operation(), done.append), done.copy()))

    async def count_turns() -> None:
        while True:
            turns.append(len(done))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(put)
        await wait_all_tasks_blocked()
        tickets = await queue.take()
        nursery.start_soon(count_turns)
        await settle_all(tickets, map(Outcome, range(30)))
        nursery.cancel_scope.cancel()
    assert done == list(range(30))
    assert all(number in known for number, known in went_on), "each is told of before it goes on"
    assert any(len(known) < 30 for _, known in went_on), "the first don't wait for the last"
    # Tasks run in any order within a turn, so two turns may lie between two looks.
    assert max(after - before for before, after in pairwise([*turns, 30])) <= 2 * 8


async def test_callers_wait_while_the_queue_is_full(autojump_clock):
    """Back-pressure first; an error only when the writer doesn't come back."""
    queue = CommitQueue(evolve(LIMITS, queued_rows=3, queued_bytes=100, queue_timeout_s=7))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.put, _operation(2, 10))
        await wait_all_tasks_blocked()
        for too_much in (_operation(2), _operation(1, 91)):
            started_s = trio.current_time()
            with pytest.raises(JournalOverloaded):
                await queue.put(too_much)
            assert trio.current_time() - started_s == 7
        nursery.start_soon(queue.put, _operation(3))
        await wait_all_tasks_blocked()
        assert queue.waiting == 1
        for expected in (2, 3):
            (ticket,) = await queue.take()
            assert ticket.rows == expected
            ticket.settle([Outcome()])
            await wait_all_tasks_blocked()


async def test_cancelled_operation_leaves_the_queue():
    """What nobody waits for any more isn't written, and its room is free."""
    queue = CommitQueue(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.put, _operation(5, 50))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (queue.rows, queue.size) == (0, 0)


async def test_queue_counts_what_waits_for_its_commit_or_is_in_it():
    """What the writer has taken and doesn't bring back is still awaited; once all has ended, nothing."""
    queue = CommitQueue(LIMITS)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(queue.put, _operation())
        await wait_all_tasks_blocked()
        tickets = await queue.take()
        assert (queue.rows, queue.unsettled) == (0, 3)
        tickets[0].settle([Outcome("done")])
        tickets[1].settle([Outcome("done")])
        await wait_all_tasks_blocked()
        assert queue.unsettled == 1
        tickets[2].settle([Outcome("done")])
    with trio.move_on_after(0):
        await queue.put(_operation())
    assert queue.unsettled == 0


async def test_company_is_waited_for_as_long_as_told(mock_clock):
    """With an interval, a commit gathers until it is over or the commit is full."""
    queue = CommitQueue(evolve(LIMITS, commit_interval_s=0.002, commit_rows=3))
    taken = []

    async def take() -> None:
        for ticket in await queue.take():
            taken.append(ticket.rows)
            ticket.settle([Outcome()])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(queue.put, _operation(1))
        await wait_all_tasks_blocked()
        assert taken == []
        mock_clock.jump(0.002)
        await wait_all_tasks_blocked()
        assert taken == [1]
        nursery.start_soon(take)
        nursery.start_soon(queue.put, _operation(1))
        await wait_all_tasks_blocked()
        nursery.start_soon(queue.put, _operation(2))
        await wait_all_tasks_blocked()
        assert sorted(taken) == [1, 1, 2]


async def test_closing_wakes_everybody(autojump_clock):
    """Nobody waits for a writer that is gone, and nobody starts to."""
    queue = CommitQueue(evolve(LIMITS, queued_rows=1))
    raised = []

    async def put() -> None:
        try:
            await queue.put(_operation())
        except JournalClosed as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(put)
            await wait_all_tasks_blocked()
        assert queue.waiting == 2
        queue.close(JournalClosed)
    assert len(set(map(id, raised))) == 3
    with pytest.raises(JournalClosed):
        await queue.put(_operation())
    queue.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.put, _operation())
        (ticket,) = await queue.take()
        ticket.settle([Outcome()])

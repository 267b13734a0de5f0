"""Tests of `seedance_server.admission_queue`."""

import pytest

from seedance_server.admission_queue import AdmissionQueue, QueueStatistics, Ticket


def ticket(tenant: str = "a", *, blocks: int = 1, weight: float = 1.0, **more) -> Ticket:
    return Ticket(tenant=tenant, weight=weight, blocks=blocks, joined_s=0.0, **more)


def join(queue: AdmissionQueue, *tickets: Ticket, now_s: float = 0.0) -> list[bool]:
    for each in tickets:
        queue.join(each, now_s)
    return [each.is_granted for each in tickets]


def test_queue_lets_in_what_fits_and_keeps_the_rest_in_order() -> None:
    """Rows and blocks both bound it; who leaves makes room for the oldest."""
    queue = AdmissionQueue(sequences=2, blocks=100, ahead=0)
    tickets = [ticket() for _ in range(4)]
    assert join(queue, *tickets) == [True, True, False, False]
    assert queue.statistics() == QueueStatistics(
        waiting=2, granted=2, started=0, running=0, blocks=2, turns=2
    )
    queue.leave(tickets[1], 1.0)
    assert [each.is_granted for each in tickets] == [True, True, True, False]
    queue = AdmissionQueue(sequences=9, blocks=10, ahead=0)
    assert join(queue, ticket(blocks=6), ticket(blocks=5), ticket(blocks=1)) == [True, False, False]


def test_queue_lets_nobody_pass_the_one_that_does_not_fit() -> None:
    """Small ones would keep a large one out for ever; alone it goes in any case."""
    queue = AdmissionQueue(sequences=9, blocks=10, ahead=0)
    small, large, other = ticket(blocks=4), ticket("b", blocks=99), ticket("c", blocks=4)
    assert join(queue, small, large, other) == [True, False, False]
    queue.leave(small, 0.0)
    assert (large.is_granted, other.is_granted) == (True, False)


def test_queue_lets_a_few_of_each_tenant_go_ahead() -> None:
    """So the engine always has one of everybody's to choose from; who has begun is ahead no more."""
    queue = AdmissionQueue(sequences=1, blocks=10, ahead=2)
    greedy = [ticket("greedy") for _ in range(9)]
    assert join(queue, *greedy) == [True] * 2 + [False] * 7
    small = [ticket("small") for _ in range(3)]
    assert join(queue, *small) == [True, True, False]
    queue.note_started(greedy[0], 0.0)
    queue.note_started(greedy[0], 0.0)
    assert [each.is_granted for each in greedy] == [True] * 3 + [False] * 6


def test_queue_shares_room_by_weight() -> None:
    """Of blocks, not of requests."""
    queue = AdmissionQueue(sequences=1, blocks=1 << 30, ahead=0)
    turns: list[str] = []
    first = ticket("x")
    queue.join(first, 0.0)
    for _ in range(60):
        for tenant, weight, blocks in (("gold", 3, 2), ("silver", 2, 1), ("bronze", 1, 1)):
            note = lambda tenant=tenant: turns.append(tenant)  # noqa: E731
            queue.join(ticket(tenant, weight=weight, blocks=blocks, on_turn=note), 0.0)
    running = first
    waiting = {id(each): each for each in queue.waiting()}
    for _ in range(90):
        queue.leave(running, 0.0)
        (running,) = [each for each in waiting.values() if each.is_granted]
        del waiting[id(running)]
    counts = {tenant: turns[:90].count(tenant) for tenant in ("gold", "silver", "bronze")}
    assert counts["gold"] * 2 / 3 == pytest.approx(counts["silver"] / 2, abs=2)
    assert counts["silver"] / 2 == pytest.approx(counts["bronze"], abs=2)


def test_rest_earns_no_claim_on_the_future() -> None:
    """A tenant that comes back after a while starts level with those that worked."""
    queue = AdmissionQueue(sequences=1, blocks=100, ahead=0)
    running = ticket("worker")
    queue.join(running, 0.0)
    for _ in range(50):
        following = ticket("worker")
        queue.join(following, 0.0)
        queue.leave(running, 0.0)
        running = following
    idle = [ticket("idle") for _ in range(4)]
    worker = [ticket("worker") for _ in range(4)]
    join(queue, *idle, *worker)
    turns = []
    while queue.statistics().granted:
        queue.leave(running, 0.0)
        granted = [each for each in (*idle, *worker) if each.is_granted and each not in turns]
        if granted:
            (running,) = granted
            turns.append(running)
    names = [each.tenant for each in turns]
    assert names.count("idle") == names.count("worker") == 4
    assert set(names[:4]) == {"idle", "worker"}


def test_resting_generation_takes_no_room() -> None:
    """A hundred readers that stand still keep nobody out."""
    queue = AdmissionQueue(sequences=2, blocks=10, ahead=0)
    rests = False
    resting = [ticket(is_resting=lambda: rests) for _ in range(2)]
    waiting = ticket()
    assert join(queue, *resting, waiting) == [True, True, False]
    rests = True
    queue.advance(0.0)
    assert waiting.is_granted


def test_who_was_in_the_engine_before_goes_first_among_its_own() -> None:
    """It keeps its place, and takes nobody else's."""
    queue = AdmissionQueue(sequences=1, blocks=10, ahead=0)
    first, other, own, back = ticket(), ticket("b"), ticket(), ticket(is_returning=True)
    join(queue, first, other, own, back)
    assert queue.waiting() == (back, own, other)


def test_position_and_wait_are_told() -> None:
    """Own ones before it, the others' by weight; the time from how turns have come."""
    queue = AdmissionQueue(sequences=1, blocks=10, ahead=0)
    mine = [ticket("a") for _ in range(4)]
    theirs = [ticket("b", weight=2.0) for _ in range(9)]
    join(queue, *mine, *theirs)
    assert queue.position(mine[1]) == 0 + 2
    assert queue.position(mine[3]) == 2 + 6
    assert queue.position(theirs[0]) == 0 + 0
    assert queue.position(theirs[3]) == 3 + 2
    assert queue.estimated_wait_s(0) is None
    running, now_s = mine[0], 0.0
    for _ in range(6):
        now_s += 2.0
        queue.leave(running, now_s)
        running = next(each for each in (*mine, *theirs) if each in queue._granted)
    assert queue.estimated_wait_s(0) == pytest.approx(2.0)
    assert queue.estimated_wait_s(4) == pytest.approx(10.0)


def test_nothing_is_kept_of_who_is_gone() -> None:
    """Waiting or not."""
    queue = AdmissionQueue(sequences=1, blocks=10, ahead=1)
    tickets = [ticket(name) for name in "aabbc"]
    join(queue, *tickets)
    for each in tickets:
        queue.leave(each, 0.0)
    assert queue.statistics() == QueueStatistics(
        waiting=0, granted=0, started=0, running=0, blocks=0, turns=5
    )
    assert queue._lines == {}

"""Reported events in memory, beyond what every journal does."""

from attrs import evolve

from seedance_server.journal.memory_events import HeldEvents
from tests.server.journal.journal_made import LIMITS, new_batch


def test_mark_of_events_that_wait_is_never_pruned() -> None:
    """It would let them in twice."""
    held = HeldEvents(evolve(LIMITS, event_marks=1))
    for number in (1, 2, 3):
        held.take("s", "acme", new_batch(number), 0)
    held.take("s", "acme", new_batch(1), 0)
    assert [batch.batch_id for batch in held.read(0, 9, 999)] == [1, 2, 3]
    held.commit("file", 3, 3)
    held.take("s", "acme", new_batch(4), 0)
    assert list(held.marks["s"]) == [4]

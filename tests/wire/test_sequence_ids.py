"""The counter of a client's messages, and what waits for an answer."""

import pytest

from seedance_wire.rules import MAX_PENDING
from seedance_wire.sequence_ids import SequenceIds


def begun(last: int = 10, *, repeats: bool = False) -> SequenceIds:
    """A session that goes on behind this number."""
    numbers = SequenceIds()
    numbers.begin(last, repeats=repeats)
    return numbers


def test_sequence_ids_repeat_rising_and_only_before_what_is_new() -> None:
    """What the server has may come again once, in order; after the first new message nothing may."""
    numbers = begun(repeats=True)
    for repeated in (3, 7):
        assert numbers.fault(repeated) is None
        numbers.count(repeated)
    assert numbers.fault(7) is not None
    assert numbers.fault(12) is not None
    numbers.count(11)
    assert numbers.next == 12
    assert numbers.fault(8) is not None


def test_sequence_ids_of_another_session_never_repeat() -> None:
    """Only a session that goes on has messages that the server knows."""
    assert begun().fault(3) is not None


def test_checkpoint_answers_the_events_that_it_covers_and_no_submit() -> None:
    """A SUBMIT waits for an answer of its own."""
    numbers = begun()
    numbers.count_submit(11)
    numbers.count_event(12)
    numbers.count_event(13)
    numbers.cover(12)
    assert numbers.waits(11)
    assert not numbers.waits(12, event=True)
    assert numbers.waits(13, event=True)
    assert not numbers.waits(13)


def test_refusal_answers_either() -> None:
    """Nothing waits for a second answer."""
    numbers = begun()
    numbers.count_submit(11)
    numbers.count_event(12)
    numbers.answer(11)
    numbers.answer(12)
    assert not numbers.waits(11, event=True)
    assert not numbers.waits(12, event=True)
    assert numbers.submits == 0


@pytest.mark.parametrize("kind", ["submit", "event"])
def test_sequence_ids_bound_what_waits(kind: str) -> None:
    """A client that floods its server fills no table."""
    numbers = begun(0)
    for number in range(1, MAX_PENDING + 1):
        assert numbers.flood() is None
        (numbers.count_submit if kind == "submit" else numbers.count_event)(number)
    assert numbers.flood() is not None

"""Messages that wait for their answer."""

import pytest

from seedance_wire.backlog import Backlog
from seedance_wire.errors import BacklogFullError
from seedance_wire.messages import Cancel, Event, Submit, UserEvent


def submit(key: int) -> Submit:
    """A request under a key of its own."""
    return Submit(sequence_id=0, idempotency_key=bytes([key]) * 16, prompt="p")


def cancel(stream_id: int) -> Cancel:
    """The end of a stream."""
    return Cancel(sequence_id=1, stream_id=stream_id)


def test_backlog_keeps_a_message_until_it_is_answered() -> None:
    """By its number in the session; what was answered is not sent again."""
    backlog = Backlog(8)
    first, second = backlog.add(submit(1)), backlog.add(submit(2))
    backlog.sent(first, 5)
    backlog.sent(second, 6)
    assert backlog.answer(6) is second
    assert backlog.answer(6) is backlog.answer(7) is None
    assert backlog.resend(0) == [first]
    assert [first.number, second.number, len(backlog)] == [1, 2, 1]


def test_backlog_sends_what_the_server_has_first_and_under_its_number() -> None:
    """A CANCEL that went out before an older SUBMIT goes out before it again."""
    backlog = Backlog(8)
    waiting, end, new = backlog.add(submit(1)), backlog.add(cancel(3)), backlog.add(submit(2))
    backlog.sent(end, 4)
    backlog.sent(new, 5)
    assert backlog.resend(4) == [end, waiting, new]
    assert (end.sequence_id, waiting.sequence_id, new.sequence_id) == (4, None, None)


def test_backlog_takes_only_requests_into_a_new_session() -> None:
    """The streams to cancel are gone, and every number with them."""
    backlog = Backlog(8)
    request, end = backlog.add(submit(1)), backlog.add(cancel(3))
    backlog.sent(request, 4)
    assert backlog.cancel_of(3) is end
    assert backlog.restart() == [request]
    assert (request.sequence_id, backlog.cancel_of(3), backlog.holds(end)) == (None, None, False)


def test_backlog_recognises_the_checkpoint_of_an_event_behind_any_number_of_requests() -> None:
    """What is answered makes room for more before a checkpoint comes; what the server has goes even so."""
    backlog = Backlog(4)
    events = [
        backlog.add(Event(sequence_id=1, batch_id=1, events=(UserEvent(timestamp=1, user_id=1, action="a"),)))
        for _ in range(3)
    ]
    for number, event in enumerate(events, 1):
        backlog.sent(event, number)
    backlog.defer(2)
    backlog.sent(events[1], 4)
    for number in range(5, 25):
        request = backlog.add(submit(number))
        backlog.sent(request, number)
        backlog.answer(number)
    assert backlog.confirm(3) == 3
    assert [backlog.keeps(event.number) for event in events] == [False, True, False]  # one has a new number
    assert backlog.confirm(24) == 23
    assert len(backlog) == 0


def test_backlog_bounds_itself() -> None:
    """What is refused leaves no trace."""
    backlog = Backlog(1)
    entry = backlog.add(submit(1))
    with pytest.raises(BacklogFullError) as caught:
        backlog.add(submit(2))
    assert caught.value.limit == 1
    backlog.drop(entry)
    assert backlog.add(submit(3)).number == 2


def test_backlog_says_up_to_which_message_all_is_safe() -> None:
    """In the application's numbers, which never go back."""
    backlog = Backlog(8)
    for key in range(3):
        backlog.sent(backlog.add(submit(key)), 10 + key)
    assert [backlog.confirm(sequence_id) for sequence_id in (9, 11, 11, 10, 12)] == [0, 2, 2, 2, 3]
    assert backlog.confirmed == 3


def test_withdrawn_message_waits_for_its_answer_only_on_its_connection() -> None:
    """One that was not sent is gone at once; nobody's key stands in anybody's way."""
    backlog = Backlog(8)
    unsent, sent = backlog.add(submit(1)), backlog.add(submit(2))
    backlog.sent(sent, 1)
    for entry in (unsent, sent):
        backlog.withdraw(entry.number)
    backlog.withdraw(99)
    assert (backlog.holds(unsent), backlog.holds(sent), list(backlog.submits())) == (False, True, [])
    assert backlog.resend(1) == []


def test_backlog_gives_an_event_a_new_number_on_each_connection() -> None:
    """Behind the requests that keep theirs; a CHECKPOINT of the former connection says nothing of it."""
    backlog = Backlog(8)
    event = backlog.add(
        Event(sequence_id=1, batch_id=1, events=(UserEvent(timestamp=1, user_id=1, action="a"),))
    )
    request = backlog.add(submit(1))
    backlog.sent(event, 1)
    backlog.sent(request, 2)
    assert backlog.deferred(event.number) is None
    assert backlog.resend(2) == [request, event]
    assert (request.sequence_id, event.sequence_id) == (2, None)
    assert backlog.deferred(event.number) is event
    backlog.confirm(2)
    assert backlog.holds(event)
    backlog.sent(event, 3)
    backlog.confirm(3)
    assert not backlog.holds(event)


def test_backlog_defers_events_only() -> None:
    """A request that was refused is answered."""
    backlog = Backlog(8)
    backlog.sent(backlog.add(submit(1)), 1)
    assert backlog.defer(1) is None

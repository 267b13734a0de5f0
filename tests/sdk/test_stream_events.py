"""What happens beside the text: bounded, in order, never in anybody's way."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from seedance_sdk.stream_events import MAX_EVENTS, Reconnected, StreamEvents


def event(number: int) -> Reconnected:
    return Reconnected(reconnects=number, outage_s=0.0)


async def test_events_come_in_their_order_and_end() -> None:
    """What is kept is taken first, then what comes, then nothing."""
    events = StreamEvents()
    events.add(event(1))
    taken: list[object] = []

    async def read() -> None:
        while (happened := await events.next()) is not None:
            taken.append(happened)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        events.add(event(2))
        events.close()
    assert taken == [event(1), event(2)]
    assert await events.next() is None


async def test_events_that_nobody_takes_make_room_for_later_ones() -> None:
    """A stream of a month holds as many as a stream of a second."""
    events = StreamEvents()
    for number in range(MAX_EVENTS + 3):
        events.add(event(number))
    assert events.dropped == 3
    assert await events.next() == event(3)


async def test_event_of_a_cancelled_wait_stays() -> None:
    """So does one that was put back, in its place."""
    events = StreamEvents()
    with trio.move_on_after(0) as scope:
        await events.next()
    assert scope.cancelled_caught
    events.add(event(1))
    events.add(event(2))
    with trio.CancelScope() as scope:
        scope.cancel()
        await events.next()
    first = await events.next()
    events.put_back(first)
    events.put_back(None)
    assert [await events.next(), await events.next()] == [event(1), event(2)]


def test_event_is_a_plain_value() -> None:
    """It can be compared, and changed by nobody."""
    assert event(1) == event(1)
    with pytest.raises(AttributeError):
        event(1).reconnects = 2  # type: ignore[misc]

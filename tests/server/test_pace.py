"""Tests of `seedance_server.pace`."""

import pytest
from attrs import define, field

from seedance_server.pace import Pace
from seedance_server.tail import FrameTail, TailFrame
from seedance_wire.messages import Delta, FlowAction

RUN, THROTTLE, PAUSE = FlowAction.RUN, FlowAction.THROTTLE, FlowAction.PAUSE


@define(eq=False)
class Reader:
    """Sent what it is told to have been sent."""

    sent_id: int = 0
    window_size: int = 32
    in_flight: int = 0
    told: list[FlowAction] = field(factory=list)

    @property
    def room(self) -> int:
        return max(self.window_size - self.in_flight, 0)

    def send(self, count: int) -> None:
        self.sent_id += count
        self.in_flight += count

    def note_flow(self, action: FlowAction) -> None:
        self.told.append(action)


def publish(tail: FrameTail, count: int) -> None:
    first = tail.last_id + 1
    frames = (
        Delta(stream_id=1, id=number, epoch=1, offset=number, text="x", token_count=1)
        for number in range(first, first + count)
    )
    tail.publish(TailFrame(frame, None, 50) for frame in frames)


@pytest.fixture
def tail() -> FrameTail:
    return FrameTail(0, 1 << 20)


def test_pace_counts_what_is_published_before_it_is_sent(tail: FrameTail) -> None:
    """A connection that can't send fills its window like an application that doesn't take; both are told."""
    pace, reader = Pace(tail, ahead=0), Reader()
    pace.add(reader)
    publish(tail, 23)
    assert pace.update(1.0) is None
    publish(tail, 1)
    assert (pace.update(2.0), pace.credit(), pace.held_since_s) == (THROTTLE, 8, None)
    reader.send(20)
    assert pace.update(3.0) is None
    publish(tail, 8)
    assert (pace.update(4.0), pace.credit(), pace.held_since_s) == (PAUSE, 0, 4.0)
    reader.in_flight = 5
    assert (pace.update(5.0), pace.credit(), pace.held_since_s) == (None, 15, 4.0)
    reader.in_flight = 4
    assert (pace.update(6.0), pace.held_since_s) == (RUN, None)
    assert reader.told == [THROTTLE, PAUSE, RUN]


def test_pace_is_that_of_whoever_has_most_room(tail: FrameTail) -> None:
    """By share of the window: who stands holds nobody up, and when the quick one goes it counts again."""
    pace, slow, quick = Pace(tail, ahead=0), Reader(window_size=100), Reader(window_size=16)
    pace.add(slow)
    publish(tail, 100)
    assert pace.update(0.0) is PAUSE
    quick.sent_id = 100
    pace.add(quick)
    assert (pace.update(1.0), pace.credit()) == (RUN, 16)
    publish(tail, 15)
    quick.send(15)
    assert (pace.update(2.0), pace.credit(), pace.unread_from) == (THROTTLE, 1, 1)
    pace.remove(quick)
    pace.remove(quick)
    assert (pace.update(3.0), pace.held_since_s, pace.readers) == (PAUSE, 3.0, 1)


def test_pace_holds_nobody_up_without_a_reader(tail: FrameTail) -> None:
    """A detached stream goes on: a pause is ended by an ack or by a detach, whichever comes."""
    pace, reader = Pace(tail, ahead=0), Reader()
    assert pace.update(0.0) is None
    pace.add(reader)
    publish(tail, 32)
    assert pace.update(1.0) is PAUSE
    pace.remove(reader)
    assert (pace.update(2.0), pace.held_since_s, pace.unread_from) == (RUN, None, None)


def test_pace_stands_for_a_reader_that_has_far_to_catch_up(tail: FrameTail) -> None:
    """While old frames are sent again none are made, until half a window is left."""
    pace, reader = Pace(tail, ahead=0), Reader()
    publish(tail, 500)
    pace.add(reader)
    assert pace.update(0.0) is PAUSE
    for _ in range(15):
        reader.send(32)
        assert pace.update(0.0) is None
        reader.in_flight = 0
        assert pace.update(0.0) is None
    assert (pace.action, pace.credit()) == (PAUSE, 12)
    reader.send(4)
    reader.in_flight = 0
    assert pace.update(1.0) is RUN


def test_pace_takes_frames_to_run_ahead_as_more_window(tail: FrameTail) -> None:
    """They are made into the journal while the window is full; then it stands."""
    pace, reader = Pace(tail, ahead=68), Reader()
    pace.add(reader)
    publish(tail, 32)
    reader.send(32)
    assert (pace.update(0.0), pace.credit()) == (None, 68)
    publish(tail, 43)
    assert pace.update(0.0) is THROTTLE
    publish(tail, 25)
    assert (pace.update(1.0), pace.credit()) == (PAUSE, 0)

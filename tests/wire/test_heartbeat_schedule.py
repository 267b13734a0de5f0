"""Which connections are due for a heartbeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.heartbeat_schedule import HeartbeatSchedule

SILENCE_S = 30.0


class Room:
    """A schedule, and when each connection was heard."""

    def __init__(self) -> None:
        self.heard: dict[int, float] = {}
        self.asked = 0
        self.schedule = HeartbeatSchedule[int](SILENCE_S, self._heard_s)

    def _heard_s(self, connection: int) -> float:
        self.asked += 1
        return self.heard[connection]

    def add(self, connection: int, now_s: float) -> None:
        self.heard[connection] = now_s
        self.schedule.add(connection, now_s)


def test_silent_connection_is_due_and_a_busy_one_is_not() -> None:
    """It is looked at again when it would be."""
    room = Room()
    room.add(1, 0)
    room.add(2, 0)
    room.heard[2] = 12.5
    assert room.schedule.due(29.9) == []
    assert room.schedule.due(30) == [1]
    assert room.schedule.next_look_s() == 42.5
    assert room.schedule.due(42.5) == [2]
    assert (len(room.schedule), room.schedule.next_look_s()) == (0, float("inf"))


def test_connection_that_was_due_is_added_again_to_count() -> None:
    """While its answer is awaited nobody asks again."""
    room = Room()
    room.add(1, 0)
    assert room.schedule.due(30) == [1]
    assert room.schedule.due(90) == []
    room.add(1, 90)
    assert room.schedule.due(120) == [1]


def test_connection_that_left_is_never_due() -> None:
    """Nor does it when it comes back meanwhile, before its time."""
    room = Room()
    room.add(1, 0)
    room.schedule.remove(1)
    room.schedule.remove(1)
    room.add(1, 20)
    assert room.schedule.due(49.9) == []
    assert room.schedule.due(50) == [1]


def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    """A million short ones do not fill a table until their time would come."""
    room = Room()
    for number in range(1_000):
        room.add(number, 0)
        room.schedule.remove(number)
    assert len(room.schedule._looks) <= 32


@pytest.mark.parametrize("messages_per_s", [1, 10])
def test_busy_connections_are_looked_at_once_in_a_silence(messages_per_s: int) -> None:
    """However much they say: a heartbeat costs nothing where it is not needed."""
    room = Room()
    for connection in range(100):
        room.add(connection, 0)
    for tick in range(300 * messages_per_s):
        now_s = tick / messages_per_s
        room.heard = dict.fromkeys(room.heard, now_s)
        assert room.schedule.due(now_s) == []
    assert room.asked <= 100 * 300 / SILENCE_S


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 20), st.sampled_from(["add", "remove", "hear", "look"]), st.integers(0, 3)),
        max_size=60,
    )
)
def test_schedule_is_the_naive_one(steps: list[tuple[float, str, int]]) -> None:
    """A scan over all connections would find the same ones, at the same moments."""
    room, naive, now_s = Room(), {}, 0.0
    for pause_s, what, connection in steps:
        now_s += pause_s
        if what == "add":
            room.add(connection, now_s)
            naive[connection] = now_s
        elif what == "remove":
            room.schedule.remove(connection)
            naive.pop(connection, None)
        elif what == "hear" and connection in naive:
            room.heard[connection] = naive[connection] = now_s
        expected = {one for one, heard_s in naive.items() if heard_s + SILENCE_S <= now_s}
        assert room.schedule.next_look_s() <= min(
            (h + SILENCE_S for h in naive.values()), default=float("inf")
        )
        assert set(room.schedule.due(now_s)) == expected
        naive = {one: heard_s for one, heard_s in naive.items() if one not in expected}

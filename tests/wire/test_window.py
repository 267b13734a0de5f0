"""The sliding window."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.errors import LocalProtocolError, RemoteProtocolError
from seedance_wire.window import SlidingWindow


def filled(frames: int, size_bytes: int = 10) -> SlidingWindow:
    """A window with frames 1 to ``frames`` sent at time 0."""
    window = SlidingWindow()
    for frame_id in range(1, frames + 1):
        window.on_sent(frame_id, size_bytes, 0.0)
    return window


def test_window_starts_at_32_frames() -> None:
    """S22: nothing is known of the client yet."""
    window = filled(32)
    assert (window.size, window.in_flight, window.used) == (32, 32, 1.0)
    assert not window.can_send(1)
    with pytest.raises(LocalProtocolError):
        window.on_sent(33, 1, 0.0)


@pytest.mark.parametrize(
    ("latency_s", "size"),
    [(0.0, 38), (0.049, 38), (0.050, 32), (0.1, 32), (0.200, 32), (0.201, 22), (9.0, 22)],
)
def test_window_resizes_by_the_latency_of_an_ack(latency_s: float, size: int) -> None:
    """Under 50 ms a fifth more, over 200 ms seven tenths, rounded down; the bounds themselves change
    nothing."""
    window = filled(1)
    window.on_ack(1, latency_s)
    assert window.size == size


def test_window_takes_latency_from_the_newest_frame_that_an_ack_covers() -> None:
    """Older frames of a cumulative ack waited on purpose and say nothing about the client."""
    window = SlidingWindow()
    window.on_sent(1, 10, 0.0)
    window.on_sent(2, 10, 5.0)
    window.on_ack(2, 5.01)
    assert (window.size, window.in_flight) == (38, 0)


def test_window_ignores_an_ack_of_nothing_new() -> None:
    """A repeated or older ack changes neither what is in flight nor the size."""
    window = filled(5)
    window.on_ack(3, 0.1)
    window.on_ack(3, 0.0)
    window.on_ack(1, 99.0)
    assert (window.size, window.in_flight, window.in_flight_bytes) == (32, 2, 20)


def test_window_refuses_an_ack_above_what_was_sent() -> None:
    """The client cannot have taken what was never sent: its fault."""
    window = filled(2)
    with pytest.raises(RemoteProtocolError):
        window.on_ack(3, 0.0)
    assert window.in_flight == 2


def test_window_refuses_a_frame_out_of_order() -> None:
    """Cumulative acks mean nothing unless ids are contiguous: our fault."""
    with pytest.raises(LocalProtocolError):
        filled(2).on_sent(4, 1, 0.0)


def test_window_bounds_bytes_but_lets_one_large_frame_pass_alone() -> None:
    """256 KiB at most are in flight, except for a frame that could never be sent otherwise."""
    window = SlidingWindow()
    window.on_sent(1, 262_143, 0.0)
    assert window.can_send(1)
    assert not window.can_send(2)
    window.on_ack(1, 0.1)
    assert window.can_send(1_000_000)
    window.on_sent(2, 1_000_000, 0.1)
    assert not window.can_send(0)
    assert window.used > 3


def test_window_tells_what_is_left_in_frames() -> None:
    """The lesser of frames and of the share of bytes; never below none, though it shrank below its use."""
    window = filled(8)
    assert window.room == 24
    window.on_sent(9, 196_608, 0.0)
    assert window.room == 7
    window = filled(32)
    window.on_ack(1, 9.0)
    assert (window.size, window.in_flight, window.room) == (22, 31, 0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 20_000)), max_size=200))
def test_window_equals_a_naive_model_for_any_history(history: list[tuple[bool, float, int]]) -> None:
    """The size, the clamp and what is in flight are what the sentence of S22 says, with exact arithmetic."""
    window = SlidingWindow()
    sent: list[tuple[int, float]] = []  # every frame: bytes, time
    acked, size, now = 0, 32, 0.0
    for sends, fraction, size_bytes in history:
        now += fraction
        in_flight = sent[acked:]
        fits = len(in_flight) < size and sum(b for b, _ in in_flight) + size_bytes <= 262_144
        assert window.can_send(size_bytes) == (fits or not in_flight)
        if sends and window.can_send(size_bytes):
            sent.append((size_bytes, now))
            window.on_sent(len(sent), size_bytes, now)
        elif len(sent) > acked:
            acked += 1 + int(fraction * (len(sent) - acked - 1))
            latency = now - sent[acked - 1][1]
            factor = Fraction(6, 5) if latency < 0.05 else Fraction(7, 10) if latency > 0.2 else Fraction(1)
            size = min(128, max(16, math.floor(size * factor)))
            window.on_ack(acked, now)
        assert (window.size, window.in_flight) == (size, len(sent) - acked)
        assert 16 <= window.size <= 128


def test_window_skips_what_is_taken_already() -> None:
    """A frame that another connection sent changes nothing but the number that comes next."""
    window = SlidingWindow(3)
    window.skip(4)
    window.on_sent(5, 10, 0.0)
    with pytest.raises(LocalProtocolError):
        window.skip(6)
    window.on_ack(5, 0.1)
    window.skip(6)
    assert (window.size, window.in_flight) == (32, 0)
    window.on_sent(7, 10, 0.2)

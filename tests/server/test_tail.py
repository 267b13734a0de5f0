"""Tests of `seedance_server.tail`."""

from collections import deque

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.tail import FrameTail, TailFrame, is_terminal
from seedance_wire.messages import Delta, Error, ErrorCode, Final, FinishReason, Flush, StageTiming, Usage


def delta(number: int, size: int = 10) -> TailFrame:
    return TailFrame(Delta(stream_id=1, id=number, epoch=1, offset=0, text="x"), None, size)


def final(number: int) -> TailFrame:
    end = Final(
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        timing=StageTiming(),
        digest=bytes(32),
    )
    return TailFrame(Flush(stream_id=1, id=number, epoch=1, offset=0, final=end), None, 10)


def test_tail_gives_what_follows_and_keeps_so_many_bytes() -> None:
    """Old frames fall off; what is asked for below them isn't here, which is not the same as nothing new."""
    tail = FrameTail(7, keep_bytes=30)
    assert (tail.first_id, tail.last_id, tail.held_bytes) == (8, 7, 0)
    tail.publish(map(delta, range(8, 14)))
    assert (tail.first_id, tail.last_id, tail.held_bytes) == (11, 13, 30)
    assert [entry.frame.id for entry in tail.after(11)] == [12, 13]
    assert [entry.frame.id for entry in tail.after(10)] == [11, 12, 13]
    assert tail.after(9) == tail.after(13) == tail.after(99) == ()


def test_tail_keeps_one_frame_whatever_its_size() -> None:
    """The newest is what its readers wait for."""
    tail = FrameTail(0, keep_bytes=10)
    tail.publish([delta(1, 1000)])
    assert [entry.frame.id for entry in tail.after(0)] == [1]


def test_tail_keeps_what_was_not_read_where_there_is_no_journal() -> None:
    """There it is the only copy."""
    tail = FrameTail(0, keep_bytes=10)
    tail.publish(map(delta, range(1, 6)), unread_from=2)
    assert tail.first_id == 2
    tail.publish([delta(6)], unread_from=5)
    assert tail.first_id == 5


def test_tail_takes_frames_in_order_and_none_after_the_last() -> None:
    """A bug of the producer is found where it happens."""
    tail = FrameTail(0, keep_bytes=100)
    with pytest.raises(AssertionError):
        tail.publish([delta(2)])
    tail.publish([delta(1), final(2)])
    assert tail.is_ended
    with pytest.raises(AssertionError):
        tail.publish([delta(3)])


async def test_tail_wakes_who_waits_for_more(autojump_clock) -> None:
    """Once there is something beyond what a reader has, and not before."""
    tail = FrameTail(0, keep_bytes=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tail.wait_beyond, 2)
        await trio.sleep(1)
        tail.publish([delta(1), delta(2)])
        with trio.move_on_after(1) as patience:
            await tail.wait_beyond(2)
        assert patience.cancelled_caught
        tail.publish([delta(3)])
    await tail.wait_beyond(2)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 100))
def test_tail_is_the_end_of_all_that_was_published(sizes: list[int], keep_bytes: int) -> None:
    """By the number: each frame once, in order, as many as fit."""
    tail, all_frames = FrameTail(0, keep_bytes), deque()
    for number, size in enumerate(sizes, 1):
        all_frames.append(delta(number, size))
        tail.publish([all_frames[-1]])
        assert list(tail.after(tail.first_id - 1)) == list(all_frames)[tail.first_id - 1 :]
        assert tail.held_bytes <= keep_bytes or tail.first_id == tail.last_id


def test_frames_that_end_a_stream_are_known() -> None:
    """An ERROR and a FLUSH with how it ended; a segment's FLUSH isn't."""
    assert is_terminal(final(1).frame)
    assert is_terminal(Error(stream_id=1, id=1, epoch=1, offset=0, code=ErrorCode.INTERNAL, message=""))
    assert not is_terminal(Flush(stream_id=1, id=1, epoch=1, offset=0))
    assert not is_terminal(delta(1).frame)

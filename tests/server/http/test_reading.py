"""Tests of `seedance_server.http.reading`: frames in order, no more of them on their way than a window."""

import trio

from seedance_server.frame_source import FrameSource
from seedance_server.http.reading import Reading
from seedance_server.tail import FrameTail, TailFrame
from seedance_wire.messages import Delta, Final, FinishReason, Flush, StageTiming, Usage


def tail_of(count: int, text: str = "x", *, ended: bool = True) -> FrameTail:
    """A stream's frames, the last of them terminal."""
    tail = FrameTail(0, 1 << 30)
    frames: list[Delta | Flush] = [
        Delta(stream_id=1, id=number, epoch=1, offset=number, text=text) for number in range(1, count + 1)
    ]
    if ended:
        usage = Usage(prompt_tokens=1, completion_tokens=count)
        final = Final(finish_reason=FinishReason.STOP, usage=usage, timing=StageTiming(), digest=b"")
        frames.append(Flush(stream_id=1, id=count + 1, epoch=1, offset=count, final=final))
    tail.publish([TailFrame(frame, None, 48 + len(text)) for frame in frames])
    return tail


def reading_of(tail: FrameTail, after_id: int = 0) -> Reading:
    return Reading(0, FrameSource(None, "s", 1, tail), None, after_id, gathers=True)


async def test_reading_takes_a_window_at_a_time(autojump_clock) -> None:
    """What is on its way fills it until the socket has it; a quick one gets more."""
    reading = reading_of(tail_of(100))
    assert (reading.room, reading.window_size) == (32, 32)
    assert [frame.id for frame in await reading.next_frames()] == list(range(1, 33))
    assert (reading.room, reading.sent_id) == (0, 32)
    reading.taken()
    assert (reading.room, reading.window_size) == (38, 38)
    assert len(await reading.next_frames()) == 38
    await trio.sleep(1)
    reading.taken()
    assert reading.window_size == 26


async def test_reading_is_bounded_in_bytes_too(autojump_clock) -> None:
    """But one frame always passes."""
    reading = reading_of(tail_of(3, "x" * 200_000))
    for number in (1, 2, 3):
        (frame,) = await reading.next_frames()
        assert frame.id == number
        reading.taken()
    assert not reading.is_done


async def test_reading_gathers_what_it_reads(autojump_clock) -> None:
    """Text, and how it ended; from anywhere on."""
    reading = reading_of(tail_of(100), after_id=90)
    await reading.read_out()
    assert reading.choice.text == ["x"] * 10
    assert reading.choice.final.usage.completion_tokens == 100


async def test_reading_learns_an_end_that_the_client_has(autojump_clock) -> None:
    """For the usage, which may be behind it."""
    reading = reading_of(tail_of(100), after_id=101)
    await reading.read_end()
    assert reading.is_done
    assert reading.choice.text == []
    assert reading.choice.final is not None

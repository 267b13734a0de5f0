"""What the double keeps: each frame made once, and the same however often it is sent."""

from __future__ import annotations

import hashlib

import pytest
import trio
import trio.testing

from seedance_sdk.script import Answer, Cut
from seedance_sdk.scripted_session import ScriptedSession, ScriptedStream
from seedance_wire.messages import Delta, Durability, Error, ErrorCode, FinishReason, Flush


def begun(answer: Answer) -> ScriptedStream:
    return ScriptedSession(id="s", resume_token=b"t").begin(answer, Durability.COMMITTED)


async def test_stream_makes_the_frames_of_its_answer_and_stops_at_its_cuts() -> None:
    """Ids, offsets and digests are those of a real server."""
    stream = begun(Answer("é", Cut(1011), "b"))
    cuts = []
    while not stream.has_ended():
        cuts.append(await stream.advance())
    assert cuts == [None, Cut(1011), None, None]
    assert [(frame.id, frame.offset) for frame in stream.frames] == [(1, 0), (2, 2), (3, 3)]
    last = stream.frames[-1]
    assert isinstance(last, Flush)
    assert last.final is not None
    assert last.final.digest == hashlib.sha256("éb".encode()).digest() == stream.digest(3)
    assert stream.digest(1) == hashlib.sha256("é".encode()).digest()


async def test_stream_gives_its_frames_the_epoch_of_whoever_asks() -> None:
    """The content of a frame never changes; its sender may."""
    stream = begun(Answer("a"))
    await stream.advance()
    assert [stream.frame(1, epoch).epoch for epoch in (1, 4)] == [1, 4]
    assert isinstance(stream.frame(1, 4), Delta)


@pytest.mark.parametrize("endless", [True, False])
async def test_stream_cancelled_ends_at_once(endless: bool, autojump_clock: trio.testing.MockClock) -> None:
    """A cancel is not left waiting for a piece."""
    stream = begun(Answer("a", delay_s=60, endless=endless))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.advance)
        await trio.testing.wait_all_tasks_blocked()
        stream.cancel()
    assert trio.current_time() == 0
    (last,) = stream.frames
    assert isinstance(last, Flush)
    assert last.final is not None
    assert last.final.finish_reason is FinishReason.CANCELLED


async def test_stream_interrupted_while_it_waits_has_made_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its connection may go at any moment; the next one goes on where it was."""
    stream = begun(Answer("a", delay_s=60))
    with trio.move_on_after(1):
        await stream.advance()
    assert stream.frames == []
    await stream.advance()
    assert len(stream.frames) == 1


async def test_stream_fails_with_the_code_of_its_script() -> None:
    """An error is a frame like others, and the last."""
    stream = begun(Answer(error=ErrorCode.ENGINE_FAILED))
    await stream.advance()
    (last,) = stream.frames
    assert isinstance(last, Error)
    assert last.code is ErrorCode.ENGINE_FAILED
    assert stream.has_ended()


def test_session_counts_attachments_messages_and_streams() -> None:
    """Epochs rise with each attachment; sequence ids never fall."""
    session = ScriptedSession(id="s", resume_token=b"t")
    session.attach()
    session.attach()
    for sequence_id in (1, 2, 1):
        session.note_sequence(sequence_id)
    assert (session.epoch, session.last_sequence_id) == (2, 2)
    assert [session.begin(Answer(), Durability.NONE).id for _ in range(3)] == [1, 2, 3]

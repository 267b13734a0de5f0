"""Tests of `seedance_server.checkpoints`."""

import itertools
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from seedance_server.checkpoints import Checkpoints
from seedance_server.errors import OutboxClosed
from seedance_server.outbox import Outbox
from seedance_wire.messages import AckLevel, Checkpoint, StreamCheckpoint


@asynccontextmanager
async def saying(last_sequence_id: int = 4):
    """Checkpoints at work: yields them, the session they tell of, and what was said when."""
    session = SimpleNamespace(last_sequence_id=last_sequence_id)
    outbox = Outbox(frame_bytes=1, control_messages=100, batch_bytes=1)
    subject = Checkpoints(
        session,
        outbox,
        ack_level=AckLevel.COMMITTED,
        interval_s=0.1,
        digest_interval_s=1,
        wall_clock=lambda: 1.5,
    )
    said: list[tuple[float, Checkpoint]] = []

    async def write() -> None:
        while (batch := await outbox.take()) is not None:
            said.extend((trio.current_time(), message) for message in batch.messages)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        nursery.start_soon(subject.run)
        yield subject, session, said, outbox
        nursery.cancel_scope.cancel()


async def test_checkpoint_follows_news_and_nothing_else(autojump_clock) -> None:
    """What was known at WELCOME isn't said again; a note without news says nothing."""
    async with saying() as (subject, session, said, _):
        subject.note_message()
        subject.note_frame(1, 3, None)
        await trio.sleep(1)
        assert said == []
        session.last_sequence_id = 6
        subject.note_message()
        await trio.sleep(1)
        assert [message for _, message in said] == [
            Checkpoint(sequence_id=6, timestamp_ms=1500, ack_level=AckLevel.COMMITTED)
        ]


async def test_checkpoints_keep_their_interval(autojump_clock) -> None:
    """News at every 10 ms: one in 100 ms, the first at once."""
    async with saying() as (subject, session, said, _):
        began_s = trio.current_time()
        for _ in range(100):
            session.last_sequence_id += 1
            subject.note_message()
            await trio.sleep(0.01)
        await trio.sleep(1)
        times = [time_s - began_s for time_s, _ in said]
        assert times[0] == 0
        assert all(later - earlier >= 0.099 for earlier, later in itertools.pairwise(times))
        assert 10 <= len(said) <= 12
        assert said[-1][1].sequence_id == 104


async def test_digests_of_streams_are_said_more_rarely(autojump_clock) -> None:
    """Each stream at its last frame, the first at once, the last without further news."""
    async with saying() as (subject, _, said, _):
        began_s = trio.current_time()
        for number in range(1, 351):
            subject.note_frame(1, number, bytes(16))
            subject.note_frame(2, number + 5, bytes(16))
            await trio.sleep(0.01)
        await trio.sleep(10)
        assert [int(time_s - began_s) for time_s, _ in said] == [0, 1, 2, 3, 4]
        assert said[-1][1].streams == (
            StreamCheckpoint(stream_id=1, frame_id=350, digest=bytes(16)),
            StreamCheckpoint(stream_id=2, frame_id=355, digest=bytes(16)),
        )


async def test_messages_are_confirmed_between_digests(autojump_clock) -> None:
    """A client waits for them to forget what it sent; streams don't come along before their time."""
    async with saying() as (subject, session, said, _):
        subject.note_frame(1, 1, bytes(16))
        await trio.sleep(0.15)
        subject.note_frame(1, 2, bytes(16))
        session.last_sequence_id = 5
        subject.note_message()
        await trio.sleep(0.15)
        assert [(message.sequence_id, len(message.streams)) for _, message in said] == [(4, 1), (5, 0)]


async def test_pushed_checkpoint_does_not_wait(autojump_clock) -> None:
    """Before a last frame it is said now; the stream itself is told of by that."""
    async with saying() as (subject, session, said, outbox):
        session.last_sequence_id = 5
        for number in (1, 2, 3):
            subject.note_frame(1, number, bytes(16))
            subject.note_frame(2, number, bytes(16))
            subject.push(1)
            subject.push(1)
        await trio.sleep(0.05)
        streams = [stream for _, message in said for stream in message.streams]
        assert [(stream.stream_id, stream.frame_id) for stream in streams] == [(2, 1)]
        assert [message.sequence_id for _, message in said] == [5]
        outbox.close()
        session.last_sequence_id = 6
        with pytest.raises(OutboxClosed):
            subject.push(1)

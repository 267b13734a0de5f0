"""Tests of `seedance_server.frame_source`."""

import hashlib

import pytest
import trio

from seedance_server.engine.sequence import SequenceOutput
from seedance_server.frame_draft import Ending, Position, draft_ending, draft_frames, frame_records
from seedance_server.frame_source import FrameSource, read_text, text_hash
from seedance_server.journal.errors import CursorAhead, StreamNotFound, StreamTruncated
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import NewSession, NewStream
from seedance_server.tail import FrameTail
from seedance_wire.messages import ErrorCode

TEXTS = [f"{number} é" for number in range(200)]


@pytest.fixture
async def journal(nursery) -> MemoryJournal:
    journal = MemoryJournal()
    await nursery.start(journal.run)
    await journal.create_session(NewSession(session_id="s", tenant="t", token_hash=bytes(32)))
    new = NewStream(
        sequence_id=1,
        idempotency_key=b"k" * 16,
        fingerprint=b"",
        request=b"",
        model_fingerprint=b"",
        prompt_ids=(1,),
        seed=1,
    )
    await journal.submit("s", 1, new)
    return journal


def drafts(segment_bytes: int = 100):
    """One draft for each text, and one for the end."""
    position = Position()
    for text in TEXTS:
        made = draft_frames(
            1, position, [SequenceOutput(id=1, text=text, token_ids=(1,))], segment_bytes=segment_bytes
        )
        yield made, None
        position = made.position
    yield draft_ending(1, position, Ending(ErrorCode.INTERNAL, "", False), (), out_of_turn=False), "error"


async def read(source: FrameSource, after_id: int, last_id: int) -> list:
    frames = []
    while after_id < last_id:
        got = await source.read(after_id)
        frames += got
        after_id = got[-1].frame.id
    return frames


@pytest.mark.parametrize("keep_bytes", [1, 500, 1 << 20])
async def test_source_gives_each_frame_once_while_they_come(autojump_clock, journal, keep_bytes) -> None:
    """Readers that begin anywhere, fast or slow: by number, from the tail or from the journal."""
    tail = FrameTail(0, keep_bytes)
    source = FrameSource(journal, "s", 1, tail)
    made = [entry for draft, _ in drafts() for entry in draft.frames]
    results: dict[tuple[int, float], list] = {}

    async def follow(after_id: int, pause_s: float) -> None:
        got = results[after_id, pause_s] = []
        while after_id < len(made):
            entries = await source.read(after_id)
            got += entries
            after_id = entries[-1].frame.id
            await trio.sleep(pause_s)

    async def produce() -> None:
        for draft, finish in drafts():
            await journal.append("s", 1, 1, frame_records(draft), finish=finish)
            tail.publish(draft.frames)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await trio.sleep(0.5)
        for after_id in (0, 1, 30, tail.last_id):
            for pause_s in (0, 0.007, 0.1):
                nursery.start_soon(follow, after_id, pause_s)
    for (after_id, _), got in results.items():
        assert [entry.frame for entry in got] == [entry.frame for entry in made[after_id:]]


async def test_source_of_an_ended_stream_needs_no_tail(journal) -> None:
    """From any frame, in pages; the text and its hash as well."""
    made = []
    for draft, finish in drafts():
        made += draft.frames
        await journal.append("s", 1, 1, frame_records(draft), finish=finish)
    source = FrameSource(journal, "s", 1, None)
    for after_id in (0, 77, len(made) - 1):
        frames = [entry.frame for entry in await read(source, after_id, len(made))]
        assert frames == [entry.frame for entry in made[after_id:]]
    text = "".join(TEXTS)
    whole, segment_start = await read_text(journal, "s", 1, len(made))
    assert whole == text
    assert 0 < segment_start <= len(text.encode())
    for through_id in (0, 1, 64, 65, len(made)):
        upto = "".join(getattr(entry.frame, "text", "") for entry in made[:through_id]).encode()
        digest = await text_hash(journal, "s", 1, through_id)
        assert digest.digest() == hashlib.sha256(upto).digest()


async def test_source_says_that_a_stream_was_abandoned_always_in_the_same_words(journal) -> None:
    """The frame isn't written, yet it is one: behind the last, durable as the fact it tells."""
    draft, _ = next(drafts())
    await journal.append("s", 1, 1, frame_records(draft))
    await journal.abandon("s", 1, 1)
    source = FrameSource(journal, "s", 1, None)
    ends = [(await source.read(1))[0].frame for _ in range(2)]
    assert ends[0] == ends[1]
    assert (ends[0].id, ends[0].offset, ends[0].code) == (2, 4, ErrorCode.ABANDONED)


async def test_source_raises_for_what_is_not_there(journal) -> None:
    """Never a wait for what can't come."""
    source = FrameSource(journal, "s", 1, None)
    with pytest.raises(StreamTruncated):  # live, but nobody produces it here
        await source.read(0)
    with pytest.raises(CursorAhead):
        await source.read(9)
    with pytest.raises(StreamNotFound):
        await FrameSource(journal, "s", 2, None).read(0)
    tail = FrameTail(5, 1)
    with pytest.raises(StreamTruncated):
        await FrameSource(None, "s", 1, tail).read(2)

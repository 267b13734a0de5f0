"""Tests of `seedance_server.frame_draft`."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.sequence import (
    Finish,
    FinishReason,
    SequenceOutput,
    StageTiming,
    TokenLogprob,
    Usage,
)
from seedance_server.frame_draft import Ending, Position, draft_ending, draft_frames, frame_records
from seedance_server.outbox import logprobs_size
from seedance_wire.codec import make_codec
from seedance_wire.connection import MAX_MESSAGE_BYTES
from seedance_wire.messages import Delta, ErrorCode, Flush
from seedance_wire.stored_form import load_frame


def output(text: str, *ids: int, **more) -> SequenceOutput:
    return SequenceOutput(id=1, text=text, token_ids=ids, **more)


def draft(outputs, position=None, segment_bytes=1 << 16):
    return draft_frames(5, position or Position(), outputs, segment_bytes=segment_bytes)


def test_draft_numbers_frames_and_counts_held_tokens_with_the_piece_that_carries_them() -> None:
    """Offsets are bytes; what has no text yet waits for what has."""
    made = draft([output("Grüße", 1), output("", 2), output("", 3), output(" 🚀", 4), output("", 5)])
    first, second = (entry.frame for entry in made.frames)
    assert (first.id, first.offset, first.text, first.token_count) == (1, 0, "Grüße", 1)
    assert (second.id, second.offset, second.text, second.token_count) == (2, 7, " 🚀", 3)
    assert made.token_ids == ((1,), (2, 3, 4))
    assert (made.position.next_id, made.position.offset) == (3, 12)
    assert [each.token_ids for each in made.held] == [(5,)]
    assert made.frames[1].digest == hashlib.sha256("Grüße 🚀".encode()).digest()[:16]


def test_draft_leaves_the_position_it_began_at_as_it_was() -> None:
    """Frames that couldn't be committed leave no trace: the same outputs give the same frames again."""
    start = draft([output("a", 1)]).position
    again = [draft([output("b", 2), output("c", 3)], start) for _ in range(2)]
    assert again[0] == again[1]
    assert start.digest.digest() == hashlib.sha256(b"a").digest()


def test_draft_commits_a_segment_when_it_is_full() -> None:
    """A FLUSH before text beyond the limit, numbered like any frame, also across drafts."""
    made = draft([output("12345", 1)] * 3, segment_bytes=10)
    assert [type(entry.frame) for entry in made.frames] == [Delta, Delta, Flush, Delta]
    assert made.token_ids[2] == ()
    more = draft([output("12345", 1)] * 2, made.position, segment_bytes=10)
    assert [type(entry.frame) for entry in more.frames] == [Delta, Flush, Delta]
    assert [entry.frame.id for entry in more.frames] == [5, 6, 7]


def test_draft_carries_log_probabilities_even_where_the_end_has_no_text() -> None:
    """Each chosen token's, once, with the piece that its token counts for."""
    entry = TokenLogprob(3, "c", -0.5, ((4, "d", -1.0),))
    finish = Finish(reason=FinishReason.STOP, usage=Usage(1, 3), timing=StageTiming())
    made = draft([output("", 2, logprobs=(entry,)), output("", 3, logprobs=(entry,), finish=finish)])
    (only,) = made.frames
    assert [logprob.token_id for logprob in only.frame.logprobs] == [3, 3]
    assert (only.frame.text, only.frame.token_count) == ("", 2)


def test_ending_is_the_next_frame_and_takes_the_tokens_without_text_along() -> None:
    """An end-of-sequence token belongs to the answer's exact ids."""
    made = draft([output("a", 1), output("", 2)])
    end = draft_ending(5, made.position, Ending(ErrorCode.DRAINING, "bye", True), made.held, out_of_turn=True)
    (entry,) = end.frames
    assert (entry.frame.id, entry.frame.offset, entry.frame.code) == (2, 1, ErrorCode.DRAINING)
    assert entry.out_of_turn
    assert end.token_ids == ((2,),)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=20), st.data())
def test_records_hold_frames_as_they_are_and_cutting_the_outputs_changes_nothing(
    texts: list[str], data: st.DataObject
) -> None:
    """However outputs are grouped into appends, the frames are the same."""
    outputs = [output(text, number) for number, text in enumerate(texts)]
    whole = draft(outputs, segment_bytes=7)
    cut = data.draw(st.integers(0, len(outputs)))
    first = draft(outputs[:cut], segment_bytes=7)
    second = draft((*first.held, *outputs[cut:]), first.position, segment_bytes=7)
    assert first.frames + second.frames == whole.frames
    assert first.token_ids + second.token_ids == whole.token_ids
    records = frame_records(whole)
    assert [load_frame(record.payload, epoch=1) for record in records] == [
        entry.frame for entry in whole.frames
    ]
    assert sum(record.size for record in records) == whole.position.offset


def test_draft_writes_down_what_waits_too_long_for_text() -> None:
    """No text for a whole answer: what waits stays bounded, and no frame is too large for a message."""
    entry = TokenLogprob(3, "c", -0.5, ((4, "d", -1.0),) * 20)
    position, held, seen = Position(), (), 0
    for number in range(500):
        made = draft((*held, output("", number, logprobs=(entry,))), position)
        position, held = made.position, made.held
        assert sum(logprobs_size(each.logprobs) for each in held) <= 32_768
        for frame in made.frames:
            assert (frame.frame.text, frame.size < 40_000) == ("", True)
            seen += len(frame.frame.logprobs)
    assert seen + len(held) == 500
    assert position.next_id > 3
    assert len(draft([output("", number) for number in range(5000)]).held) <= 1024


@given(
    st.text(alphabet="\x00aé🚀", min_size=1, max_size=30),
    st.integers(1, 8_000),
    st.integers(0, 300),
    st.integers(0, 30),
)
def test_draft_makes_no_frame_that_an_encoding_cannot_carry(word, times, tokens, alternatives) -> None:
    """However much comes at once, each frame of it fits a message in JSON; nothing is lost or doubled."""
    text = word * times
    logprobs = tuple(
        TokenLogprob(number, word, -1.0, tuple((other, word, -2.0) for other in range(alternatives)))
        for number in range(tokens)
    )
    made = draft([output(text, *range(tokens), logprobs=logprobs)], segment_bytes=1 << 30)
    frames = [entry.frame for entry in made.frames]
    codec = make_codec("seedance.v1.json")
    assert all(len(codec.encode([frame])) <= MAX_MESSAGE_BYTES for frame in frames)
    assert "".join(frame.text for frame in frames) == text
    assert [entry.token_id for frame in frames for entry in frame.logprobs] == list(range(tokens))
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
    assert made.token_ids[0] == tuple(range(tokens))
    assert sum(frame.token_count for frame in frames) == tokens
    offset = 0
    for frame in frames:
        assert frame.offset == offset
        offset += len(frame.text.encode())
    assert made.position.offset == offset
    assert made.frames[-1].digest == hashlib.sha256(text.encode()).digest()[:16]

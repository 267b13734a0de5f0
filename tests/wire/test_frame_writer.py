"""How frames travel."""

from __future__ import annotations

import pytest

from seedance_wire.delta import apply_difference
from seedance_wire.envelope import CodedDelta, Pieces
from seedance_wire.errors import LocalProtocolError
from seedance_wire.frame_writer import FrameWriter
from seedance_wire.messages import Delta, Flush, Frame, TokenLogprob


def delta(id_: int, text: str, stream_id: int = 1, tokens: int = 1) -> Delta:
    """A DELTA; offsets don't matter here."""
    return Delta(stream_id=stream_id, id=id_, epoch=1, offset=0, text=text, token_count=tokens)


def flush(id_: int, stream_id: int = 1) -> Flush:
    """The end of a segment."""
    return Flush(stream_id=stream_id, id=id_, epoch=1, offset=0)


def writer(*streams: int, pieces: bool = True) -> FrameWriter:
    """One that has sent a frame of these streams."""
    made = FrameWriter(differences=True)
    made.pieces = pieces
    if streams:
        made.commit(made.draft([delta(1, "a", stream_id) for stream_id in streams]))
    return made


def written(made: FrameWriter, *frames: Frame) -> Pieces:
    """Frames, sent."""
    draft = made.draft(frames)
    made.commit(draft)
    (pieces,) = draft.outgoing
    assert isinstance(pieces, Pieces)
    return pieces


def test_first_frame_of_a_stream_has_its_numbers() -> None:
    """The reader counts from there; those behind it are pieces, in the same envelope already."""
    pieces = written(writer(), delta(1, "a"), delta(2, "b"), delta(1, "c", 2), delta(3, "d"))
    assert pieces.stream_ids == (0, 1, 0, 1)
    assert pieces.frames == (delta(1, "a"), delta(1, "c", 2))
    assert (pieces.data, pieces.sizes, pieces.token_counts, pieces.number) == (b"bd", (2, 2), (), 1)


def test_streams_are_named_only_where_they_changed() -> None:
    """An envelope with a 0 is no model for the next: ends and beginnings don't repeat."""
    made = writer(1, 2)
    assert written(made, delta(2, "a"), delta(2, "b", 2)).stream_ids == (1, 2)
    assert written(made, delta(3, "a"), delta(3, "b", 2)).stream_ids == ()
    assert written(made, delta(4, "a"), flush(4, 2)).stream_ids == (1, 0)
    assert written(made, delta(5, "a"), delta(5, "b", 2)).stream_ids == ()
    assert written(made, delta(6, "a")).stream_ids == (1,)


def test_lone_whole_piece_has_no_size() -> None:
    """Its data says it; differences must be marked, and several must be told apart."""
    made = writer(1)
    assert written(made, delta(2, "abc")).sizes == ()
    assert written(made, delta(3, "a"), delta(4, "")).sizes == (2, 0)


def test_tokens_are_counted_only_where_a_piece_is_not_one() -> None:
    """Most are."""
    made = writer(1)
    assert written(made, delta(2, "a"), delta(3, "b", tokens=2)).token_counts == (1, 2)
    assert written(made, delta(4, "a", tokens=0)).token_counts == (0,)


def test_log_probabilities_and_ends_are_no_pieces() -> None:
    """What is rare travels with everything."""
    made = writer(1)
    logged = Delta(
        stream_id=1,
        id=2,
        epoch=1,
        offset=0,
        text="a",
        logprobs=(TokenLogprob(token_id=1, text="a", logprob=-1.0),),
    )
    assert written(made, logged, flush(3)).frames == (logged, flush(3))


def test_forgotten_stream_begins_anew() -> None:
    """Behind RESUMED the first frame has its numbers and its text whole."""
    made = writer(1)
    written(made, delta(2, "שלום"))
    made.forget(1)
    assert written(made, delta(3, "לום")).frames == (delta(3, "לום"),)
    assert written(made, delta(4, "a")).stream_ids == (1,)


def test_draft_that_is_not_committed_changes_nothing() -> None:
    """A message that was too large is sent in halves, which are drafted again."""
    made = writer(1)
    assert (
        made.draft([delta(2, "a"), delta(3, "b")]).outgoing
        == made.draft([delta(2, "a"), delta(3, "b")]).outgoing
    )
    before = made.draft([delta(1, "x", 2)])
    assert made.draft([delta(1, "x", 2)]).outgoing == before.outgoing


def test_number_counts_modulo_128() -> None:
    """It takes one byte for ever."""
    made = writer(1)
    numbers = [written(made, delta(2, "a")).number for _ in range(128)]
    assert numbers == [*range(2, 128), 0, 1]


@pytest.mark.parametrize("pieces", [False, True])
def test_difference_is_taken_only_where_it_is_shorter(pieces: bool) -> None:
    """Hebrew after Hebrew shrinks; ASCII, what has no context and what would grow travel whole."""
    made = writer(pieces=pieces)
    frames = [delta(1, "של"), delta(2, "ום"), delta(3, "abc"), delta(4, "😀a"), delta(5, "")]
    draft = made.draft(frames)
    assert draft.differences == 1
    assert draft.text_bytes == [4, 4, 3, 5, 0]
    if pieces:
        (envelope,) = draft.outgoing
        assert isinstance(envelope, Pieces)
        assert [size & 1 for size in envelope.sizes] == [1, 0, 0, 0]
        assert apply_difference(envelope.data[: envelope.sizes[0] >> 1], ord("ל")) == "ום"
    else:
        assert [type(frame) for frame in draft.outgoing] == [Delta, CodedDelta, Delta, Delta, Delta]


def test_lone_difference_must_pay_for_its_mark() -> None:
    """To say that a lone piece is differences takes three bytes."""
    made = writer(1, 2)
    written(made, delta(2, "ש"))
    assert not made.draft([delta(3, "לום")]).differences
    assert made.draft([delta(3, "לוםשל")]).differences == 1
    written(made, delta(3, "的"))
    assert not made.draft([delta(4, "你好世界")]).differences  # 10 bytes instead of 12
    assert made.draft([delta(4, "你好世界"), delta(2, "a", 2)]).differences == 1


def test_difference_needs_a_context() -> None:
    """It is clear at the beginning and behind a FLUSH."""
    made = writer(pieces=False)
    draft = made.draft([delta(1, "שלום"), flush(2), delta(3, "שלום"), delta(4, "שלום")])
    assert [type(frame) for frame in draft.outgoing] == [Delta, Flush, Delta, CodedDelta]


def test_lone_surrogate_is_our_fault() -> None:
    """No text holds one."""
    with pytest.raises(LocalProtocolError, match="surrogate"):
        writer(1).draft([delta(2, "\ud800")])

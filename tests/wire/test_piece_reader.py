"""Pieces become frames again."""

from __future__ import annotations

import contextlib

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.delta import apply_difference
from seedance_wire.envelope import CodedDelta, Pieces
from seedance_wire.errors import DecodeError
from seedance_wire.frame_writer import FrameWriter
from seedance_wire.messages import Delta, Error, ErrorCode, Flush, Frame
from seedance_wire.piece_reader import Missing, PieceReader
from tests.strategies import near_texts, pieces_messages, texts
from tests.wire_conversations import FINAL


class Wire:
    """A writer and a reader, which applies whatever comes."""

    def __init__(self) -> None:
        self.writer = FrameWriter(differences=True)
        self.writer.pieces = True
        self.reader = PieceReader(7, lambda stream_id: len(self.texts.get(stream_id, "").encode()))
        self.texts: dict[int, str] = {}
        self.written: dict[int, str] = {}
        self.ids: dict[int, int] = {}

    def frame(self, stream_id: int, text: str | None, tokens: int = 1) -> Frame:
        """The next frame of a stream: without text a FLUSH."""
        before = self.written.get(stream_id, "")
        self.ids[stream_id] = self.ids.get(stream_id, 0) + 1
        numbers = {
            "stream_id": stream_id,
            "id": self.ids[stream_id],
            "epoch": 7,
            "offset": len(before.encode()),
        }
        if text is None:
            return Flush(**numbers)
        self.written[stream_id] = before + text
        return Delta(**numbers, text=text, token_count=tokens)

    def send(self, *frames: Frame) -> Pieces:
        """As one envelope."""
        draft = self.writer.draft(frames)
        self.writer.commit(draft)
        (pieces,) = draft.outgoing
        assert isinstance(pieces, Pieces)
        return pieces

    def read(self, pieces: Pieces) -> list[Frame | CodedDelta | Missing]:
        """Applies them, as a connection does, with differences undone."""
        read: list[Frame | CodedDelta | Missing] = []
        for frame in self.reader.frames(pieces):
            if isinstance(frame, CodedDelta):
                text = apply_difference(frame.difference, ord(self.texts[frame.stream_id][-1]))
                numbers = {name: getattr(frame, name) for name in ("stream_id", "id", "epoch", "offset")}
                frame = Delta(**numbers, text=text, token_count=frame.token_count)  # noqa: PLW2901
            if isinstance(frame, Delta):
                self.texts[frame.stream_id] = self.texts.get(frame.stream_id, "") + frame.text
            read.append(frame)
        return read


@given(
    messages=st.lists(
        st.lists(
            st.tuples(st.integers(1, 3), st.none() | near_texts | texts, st.integers(0, 3)),
            min_size=1,
            max_size=5,
        ),
        max_size=6,
    )
)
def test_frames_come_back_with_all_their_numbers(messages: list[list[tuple[int, str | None, int]]]) -> None:
    """Whatever is written in whatever batches, the reader derives just what was left out."""
    wire = Wire()
    for message in messages:
        frames = [wire.frame(*each) for each in message]
        assert wire.read(wire.send(*frames)) == frames


def test_repeated_envelope_is_dropped_whole() -> None:
    """Its pieces would else count as the next ones."""
    wire = Wire()
    first = wire.send(wire.frame(1, "a"), wire.frame(2, "b"))
    second = wire.send(wire.frame(1, "c"), wire.frame(2, "d"))
    third = wire.send(wire.frame(1, "e"), wire.frame(2, "f"))
    for pieces in (first, second, third):
        wire.read(pieces)
    for pieces in (third, second, first):
        assert wire.read(pieces) == []
    assert wire.reader.repeated == 6
    assert wire.texts == wire.written


def test_lost_envelope_leaves_every_stream_missing() -> None:
    """Whose frames it held isn't known; whatever goes on without numbers can't be placed."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a"), wire.frame(2, "b")))
    wire.read(wire.send(wire.frame(1, "c"), wire.frame(2, "d")))
    wire.send(wire.frame(1, "lost"))
    named = wire.send(wire.frame(1, "e"), wire.frame(2, "f"))
    assert wire.read(named) == [Missing(None), Missing(1), Missing(2)]
    unnamed = wire.send(wire.frame(1, "g"), wire.frame(2, "h"))
    assert wire.read(unnamed) == [Missing(1), Missing(2)]


def test_lost_envelope_takes_the_names_of_streams_along() -> None:
    """The next one may count on names that never came: nothing of it is guessed."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a"), wire.frame(2, "b")))
    wire.read(wire.send(wire.frame(1, "c")))
    wire.send(wire.frame(2, "lost"))
    assert wire.read(wire.send(wire.frame(2, "e"))) == [Missing(None)]
    assert wire.read(wire.send(wire.frame(2, "f"))) == []
    wire.writer.forget(1)
    assert wire.read(wire.send(wire.frame(2, "g"))) == [Missing(2)]
    assert wire.texts == {1: "ac", 2: "b"}


def test_frame_with_its_numbers_mends_a_stream() -> None:
    """It is what follows RESUMED."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a")))
    wire.read(wire.send(wire.frame(1, "b")))
    wire.writer.forget(1)
    wire.reader.forget(1)
    frames = [wire.frame(1, "c"), wire.frame(1, "d")]
    pieces = wire.send(*frames)
    assert pieces.frames == (frames[0],)
    assert wire.read(pieces) == frames


def test_frame_that_comes_late_takes_nothing_back() -> None:
    """The numbers of an old one are not those behind which the next piece stands."""
    wire = Wire()
    first = wire.frame(1, "a")
    wire.read(wire.send(first, wire.frame(1, "b")))
    wire.reader.note(first)
    last = wire.frame(1, "c")
    assert wire.read(wire.send(last)) == [last]


@pytest.mark.parametrize(
    "end",
    [
        Flush(stream_id=1, id=2, epoch=7, offset=1, final=FINAL),
        Error(stream_id=1, id=2, epoch=7, offset=1, code=ErrorCode.INTERNAL, message="m"),
    ],
)
def test_nothing_follows_an_end(end: Frame) -> None:
    """A piece behind it has no place."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a"), end))
    pieces = Pieces(number=2, stream_ids=(1,), data=b"x")
    assert wire.read(pieces) == [Missing(1)]


GOOD = Pieces(number=2, stream_ids=(1, 1), data=b"ab", sizes=(2, 2), token_counts=(1, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": ()},
        {"sizes": (4,)},
        {"sizes": (2, 2, 0)},
        {"token_counts": (1,)},
        {"stream_ids": (1, 0)},
        {"stream_ids": (0, 1, 1)},
        {"stream_ids": (0,), "sizes": (), "token_counts": ()},
        {
            "stream_ids": (0,),
            "sizes": (),
            "token_counts": (),
            "frames": (Flush(stream_id=1, id=2, epoch=7, offset=0),),
        },
        {"frames": (Flush(stream_id=1, id=2, epoch=7, offset=0),)},
        {"data": b"\xff\xff"},
        {"data": "é".encode()},
    ],
)
def test_lists_that_contradict_each_other_are_refused(changes: dict[str, object]) -> None:
    """Each piece has a stream, a size and data, no more and no less, and whole characters."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a")))
    with pytest.raises(DecodeError):
        wire.read(evolve(GOOD, **changes))  # type: ignore[arg-type]
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a")))
    assert len(wire.read(GOOD)) == 2


def test_pieces_of_no_stream_are_refused() -> None:
    """There must have been names before they can be left out."""
    with pytest.raises(DecodeError):
        Wire().read(Pieces(number=1, stream_ids=(), data=b""))


@given(pieces=pieces_messages)
def test_reader_raises_nothing_else(pieces: Pieces) -> None:
    """Whatever the lists say of each other."""
    wire = Wire()
    wire.read(wire.send(wire.frame(1, "a")))
    with contextlib.suppress(DecodeError):
        list(wire.reader.frames(evolve(pieces, number=2)))

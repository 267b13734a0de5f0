"""The history checker is only worth something if each way of breaking a history makes it speak."""

from __future__ import annotations

import hashlib

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.history import ClientRecord, Fault, JournaledFrame, Piece, check_histories

TEXTS = ("The ", "größe ", "", "of ", "🚀 ", "things.")


def frames_of(texts: tuple[str, ...] = TEXTS) -> list[JournaledFrame]:
    """A finished stream with these texts."""
    frames, offset = [], 0
    for id_, text in enumerate(texts, 1):
        frames.append(JournaledFrame(id_, offset, text))
        offset += len(text.encode())
    return [*frames, JournaledFrame(len(texts) + 1, offset, "", is_last=True)]


def record_of(frames: list[JournaledFrame]) -> ClientRecord:
    """A client that was given all of it."""
    text = "".join(frame.text for frame in frames)
    pieces = [Piece(frame.id, frame.offset, frame.text) for frame in frames if not frame.is_last]
    return ClientRecord(pieces, ends=1, digest=hashlib.sha256(text.encode()).digest())


def faults(
    record: ClientRecord, frames: list[JournaledFrame] | None = None, *, may_be_unfinished: bool = False
) -> dict[Fault, int]:
    """What the checker says: bytes by fault."""
    verdict = check_histories(
        {"s": record}, {"s": frames or frames_of()}, may_be_unfinished=may_be_unfinished
    )
    found = {finding.fault for finding in verdict.findings}
    return {fault: verdict.bytes_of(fault) for fault in found}


@given(texts=st.lists(st.text(max_size=5), max_size=12).map(tuple))
def test_checker_is_silent_when_all_came_once_and_in_order(texts: tuple[str, ...]):
    """A sound history has no finding, whatever its text."""
    frames = frames_of(texts)
    assert faults(record_of(frames), frames) == {}


@given(cut=st.integers(0, len(TEXTS)))
def test_checker_is_silent_when_a_client_was_stopped_early(cut: int):
    """A prefix is sound, if it may be one."""
    record = evolve(record_of(frames_of()), pieces=record_of(frames_of()).pieces[:cut], ends=0, digest=None)
    assert faults(record, may_be_unfinished=True) == {}
    assert Fault.UNFINISHED in faults(record)


@given(at=st.sampled_from([0, 1, 3, 4, 5]))
def test_checker_finds_a_lost_piece(at: int):
    """One piece missing in the middle or at the end is counted in bytes, and the digest tells as well."""
    record = record_of(frames_of())
    lost = record.pieces.pop(at)
    assert faults(record) == {Fault.LOST: len(lost.text.encode()), Fault.DIGEST: 0}


@given(at=st.sampled_from([0, 1, 3, 4, 5]), later=st.integers(0, 5))
def test_checker_finds_a_piece_that_came_twice(at: int, later: int):
    """Whenever the second one comes."""
    record = record_of(frames_of())
    piece = record.pieces[at]
    record.pieces.insert(min(at + 1 + later, len(record.pieces)), piece)
    assert faults(record) == {
        Fault.DUPLICATED: len(piece.text.encode()),
        Fault.MISNUMBERED: 0,
        Fault.DIGEST: 0,
    }


def test_checker_finds_pieces_in_the_wrong_order():
    """All bytes once is not enough."""
    record = record_of(frames_of())
    record.pieces[3], record.pieces[4] = record.pieces[4], record.pieces[3]
    assert faults(record) == {Fault.REORDERED: len("of "), Fault.MISNUMBERED: 0, Fault.DIGEST: 0}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"text": "THE "}, {Fault.CHANGED: 4, Fault.MISNUMBERED: 0, Fault.DIGEST: 0}),
        ({"id": 2}, {Fault.MISNUMBERED: 0}),
        ({"text": "The"}, {Fault.LOST: 1, Fault.MISNUMBERED: 0, Fault.DIGEST: 0}),
    ],
)
def test_checker_finds_a_piece_that_is_not_the_journals(change: dict[str, object], found: dict[Fault, int]):
    """One (stream, id) has one content for ever."""
    record = record_of(frames_of())
    record.pieces[0] = evolve(record.pieces[0], **change)
    assert faults(record).items() >= found.items()


def test_checker_finds_what_was_sent_before_it_was_durable():
    """The application has text that a takeover would not know of."""
    frames = frames_of()
    record = record_of(frames)
    assert faults(record, frames[:5])[Fault.NOT_JOURNALED] == len("things.")
    assert Fault.NOT_JOURNALED in faults(record, frames[:-1])
    verdict = check_histories({"other": record}, {"s": frames})
    assert [finding.fault for finding in verdict.findings] == [Fault.NOT_JOURNALED]
    assert verdict.bytes_of(Fault.NOT_JOURNALED) == verdict.text_bytes


def test_checker_finds_an_end_that_came_twice_and_one_that_did_not_fit():
    """A stream ends once, with the digest of its text."""
    assert faults(evolve(record_of(frames_of()), ends=2)) == {Fault.ENDED_TWICE: 0}
    assert faults(evolve(record_of(frames_of()), digest=bytes(32))) == {Fault.DIGEST: 0}
    frames = frames_of()
    frames[-1] = evolve(frames[-1], digest=bytes(32))
    assert faults(record_of(frames), frames) == {Fault.DIGEST: 0}


def test_checker_counts_what_it_looked_at():
    """A verdict about nothing would be no proof."""
    frames = frames_of()
    verdict = check_histories({1: record_of(frames), 2: record_of(frames)}, {1: frames, 2: frames})
    assert (verdict.streams, verdict.pieces) == (2, 2 * len(TEXTS))
    assert verdict.text_bytes == 2 * len("".join(TEXTS).encode())
    assert verdict.findings == ()

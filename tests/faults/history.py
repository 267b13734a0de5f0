"""What a client was given, held against what the journal holds: the judge of every fault test.

A client's record is the pieces that the application got, in the order in which it got them, and how the
stream ended. The journal's is the text of each frame. The rule is one: at every moment the pieces are a
prefix of the journal's text, each byte once and in order, and a stream that ended has all of it. The checker
goes by offsets and bytes alone and shares no code with the client's bookkeeping, or it would share its
mistakes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import Factory, define, frozen

__all__ = ["ClientRecord", "Fault", "Finding", "JournaledFrame", "Piece", "Verdict", "check_histories"]


class Fault(Enum):
    """What can be wrong with a history."""

    LOST = "lost"
    """A later byte came and this one did not, or the stream ended without it."""
    DUPLICATED = "duplicated"
    """It came again."""
    REORDERED = "reordered"
    """It came, but after a byte that follows it."""
    CHANGED = "changed"
    """It is not the one in the journal."""
    NOT_JOURNALED = "not journaled"
    """The journal has no such byte, or no such stream."""
    MISNUMBERED = "misnumbered"
    """Frame ids that don't rise, or a frame that is another frame's text."""
    DIGEST = "digest"
    """The whole text is not the one whose digest the server sent."""
    UNFINISHED = "unfinished"
    """The journal holds the stream's end, the client never got it."""
    ENDED_TWICE = "ended twice"
    """Something came after the end."""


@frozen
class Piece:
    """One piece of text as the application got it.

    Attributes:
        id: The frame's id.
        offset: UTF-8 bytes before it.
        text: It.
    """

    id: int
    offset: int
    text: str


@define
class ClientRecord:
    """What one application was given of one stream.

    Attributes:
        pieces: In the order of arrival.
        ends: How often it was told that the stream had ended.
        digest: SHA-256 of the whole text as the server sent it, if it did.
    """

    pieces: list[Piece] = Factory(list)
    ends: int = 0
    digest: bytes | None = None

    @property
    def text(self) -> str:
        """All pieces, joined as they came."""
        return "".join(piece.text for piece in self.pieces)


@frozen
class JournaledFrame:
    """One frame as the journal has it.

    Attributes:
        id: Its number.
        offset: UTF-8 bytes before it.
        text: What it adds.
        is_last: It ends the stream.
        digest: Then the SHA-256 of the whole text, if it ends well.
    """

    id: int
    offset: int
    text: str = ""
    is_last: bool = False
    digest: bytes | None = None


@frozen
class Finding:
    """One fault of one stream; ``size`` is in bytes, 0 where bytes are not the matter."""

    stream: object
    fault: Fault
    offset: int
    size: int
    detail: str


@frozen
class Verdict:
    """The outcome for all streams together.

    Attributes:
        streams: Compared.
        pieces: Looked at.
        text_bytes: In them.
        findings: Everything that is wrong; empty if nothing is.
    """

    streams: int
    pieces: int
    text_bytes: int
    findings: tuple[Finding, ...]

    def bytes_of(self, fault: Fault) -> int:
        """Bytes with that fault."""
        return sum(finding.size for finding in self.findings if finding.fault is fault)


def check_histories(
    records: Mapping[object, ClientRecord],
    journal: Mapping[object, Sequence[JournaledFrame]],
    *,
    may_be_unfinished: bool = False,
) -> Verdict:
    """Compares each client's record with the journal's frames of the same stream.

    Args:
        records: By stream.
        journal: By stream, under the same names.
        may_be_unfinished: Clients were stopped before the end on purpose.
    """
    findings: list[Finding] = []
    for stream, record in records.items():
        frames = journal.get(stream)
        if frames is None:
            size = len(record.text.encode())
            findings.append(Finding(stream, Fault.NOT_JOURNALED, 0, size, "no such stream in the journal"))
        else:
            findings += _check_stream(stream, record, frames, may_be_unfinished=may_be_unfinished)
    pieces = [piece for record in records.values() for piece in record.pieces]
    return Verdict(
        streams=len(records),
        pieces=len(pieces),
        text_bytes=sum(len(piece.text.encode()) for piece in pieces),
        findings=tuple(findings),
    )


def _check_stream(
    stream: object, record: ClientRecord, frames: Sequence[JournaledFrame], *, may_be_unfinished: bool
) -> Iterable[Finding]:
    truth = "".join(frame.text for frame in frames).encode()
    by_id = {frame.id: frame for frame in frames}
    given = bytearray(len(truth))  # 1 where the application has the byte
    reached = last_id = 0
    for piece in record.pieces:
        data = piece.text.encode()
        span = slice(piece.offset, piece.offset + len(data))
        beyond = max(0, span.stop - max(len(truth), span.start))
        if beyond:
            yield Finding(stream, Fault.NOT_JOURNALED, span.stop - beyond, beyond, f"frame {piece.id}")
        if truth[span] != data[: len(data) - beyond]:
            yield Finding(stream, Fault.CHANGED, span.start, len(data), f"frame {piece.id}")
        again = sum(given[span])
        if again:
            yield Finding(stream, Fault.DUPLICATED, span.start, again, f"frame {piece.id}")
        late = max(0, min(reached, span.stop) - span.start) - again
        if late > 0:
            yield Finding(stream, Fault.REORDERED, span.start, late, f"frame {piece.id} after {last_id}")
        frame = by_id.get(piece.id)
        if piece.id <= last_id or (frame and (frame.offset, frame.text) != (piece.offset, piece.text)):
            yield Finding(stream, Fault.MISNUMBERED, span.start, 0, f"frame {piece.id} after {last_id}")
        given[span.start : span.stop - beyond] = b"\1" * (len(data) - beyond)
        reached, last_id = max(reached, span.stop), max(last_id, piece.id)
    yield from _check_end(stream, record, frames, given, may_be_unfinished=may_be_unfinished)
    wanted = len(truth) if record.ends else min(reached, len(truth))
    if missing := given[:wanted].count(0):
        yield Finding(stream, Fault.LOST, given.index(0), missing, f"of {wanted} bytes")


def _check_end(
    stream: object,
    record: ClientRecord,
    frames: Sequence[JournaledFrame],
    given: bytearray,
    *,
    may_be_unfinished: bool,
) -> Iterable[Finding]:
    has_end = bool(frames) and frames[-1].is_last
    if record.ends > 1:
        yield Finding(stream, Fault.ENDED_TWICE, len(given), 0, f"{record.ends} ends")
    if record.ends and not has_end:
        yield Finding(stream, Fault.NOT_JOURNALED, len(given), 0, "an end that the journal doesn't have")
    if has_end and not record.ends and not may_be_unfinished:
        yield Finding(stream, Fault.UNFINISHED, len(given), given.count(0), "the end never came")
    known = {record.digest, frames[-1].digest if record.ends and has_end else None} - {None}
    if known - {hashlib.sha256(record.text.encode()).digest()}:
        yield Finding(stream, Fault.DIGEST, 0, 0, "the text is not the one that the server ended with")

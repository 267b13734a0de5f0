"""What a client knows of the text of each stream."""

import hashlib

import pytest
from attrs import evolve

from seedance_wire.cursor import ReceiveCursor
from seedance_wire.envelope import CodedDelta, Gap
from seedance_wire.errors import DecodeError, DivergedError, RemoteProtocolError
from seedance_wire.messages import (
    AckLevel,
    Checkpoint,
    Delta,
    Durability,
    Hello,
    Resume,
    Resumed,
    StreamCheckpoint,
)
from seedance_wire.received_streams import MAX_GAPS, ReceivedStreams
from seedance_wire.running_digest import RunningDigest
from seedance_wire.state import ProtocolState, Role
from tests.wire_conversations import EPOCH, WELCOME, accepted, advance, submit


def begun() -> tuple[ProtocolState, ReceivedStreams]:
    """Stream 1, which can be resumed, without frames."""
    state = ProtocolState(Role.CLIENT, 4)
    advance(state, Hello(), WELCOME, submit(11))
    advance(state, evolve(accepted(11, 1), durability=Durability.COMMITTED))
    received = ReceivedStreams(state)
    received.begin(1)
    return state, received


def delta(id_: int, offset: int, text: str) -> Delta:
    """The next piece."""
    return Delta(stream_id=1, id=id_, epoch=EPOCH, offset=offset, text=text)


def resume(state: ProtocolState, received: ReceivedStreams, after: int) -> None:
    """RESUME and its good answer."""
    advance(state, Resume(stream_id=1, last_processed_id=after))
    answer = Resumed(stream_id=1, next_id=after + 1, epoch=EPOCH, first_available_id=1, last_id=9, live=True)
    advance(state, answer)
    received.resumed(1)


def test_gap_is_told_once_and_what_crosses_is_dropped() -> None:
    """Until RESUMED nothing of the stream counts, even what would fit."""
    state, received = begun()
    assert received.apply(delta(2, 1, "b")) == Gap(stream_id=1, frame_id=2)
    assert received.apply(delta(1, 0, "a")) is None
    resume(state, received, 0)
    assert received.apply(delta(1, 0, "a")) == delta(1, 0, "a")
    assert (received.applied, received.stale, received.duplicates) == (1, 1, 0)


def test_gaps_without_progress_are_counted() -> None:
    """A frame that is applied forgives them; too many in a row are the server's fault."""
    state, received = begun()
    for _ in range(MAX_GAPS):
        received.apply(delta(2, 1, "b"))
        resume(state, received, 0)
    received.apply(delta(1, 0, "a"))
    for _ in range(MAX_GAPS):
        assert isinstance(received.apply(delta(3, 2, "c")), Gap)
        resume(state, received, 1)
    with pytest.raises(RemoteProtocolError, match="resumed 3 times"):
        received.apply(delta(3, 2, "c"))


def test_resumed_stream_begins_with_whole_text() -> None:
    """The context of before is gone at both ends."""
    state, received = begun()
    received.apply(delta(1, 0, "ש"))
    resume(state, received, 1)
    with pytest.raises(DecodeError, match="to nothing"):
        received.apply(CodedDelta(stream_id=1, id=2, epoch=EPOCH, offset=2, difference=b"\x19"))


def test_checkpoint_is_compared_only_at_the_same_frame() -> None:
    """Another frame says nothing; nor does a text whose beginning was never seen."""
    _, received = begun()
    received.apply(delta(1, 0, "a"))

    def checkpoint(frame_id: int, text: str, stream_id: int = 1) -> Checkpoint:
        digest = hashlib.sha256(text.encode()).digest()[:16]
        entry = StreamCheckpoint(stream_id=stream_id, frame_id=frame_id, digest=digest)
        return Checkpoint(sequence_id=1, timestamp_ms=0, ack_level=AckLevel.COMMITTED, streams=(entry,))

    for harmless in (checkpoint(1, "a"), checkpoint(2, "b"), checkpoint(1, "b", stream_id=2)):
        received.compare(harmless)
    with pytest.raises(DivergedError) as caught:
        received.compare(checkpoint(1, "b"))
    assert caught.value.stream_id == 1
    received.know(2, ReceiveCursor(EPOCH, 1, 1), RunningDigest.of_unseen(None))
    received.compare(checkpoint(1, "b", stream_id=2))
    assert received.running == (1, 2)
    received.forget(2)
    assert received.position(2) is None
    assert received.running == (1,)


def test_missing_frame_is_a_gap_until_resumed() -> None:
    """Nothing is known of it but its stream."""
    state, received = begun()
    received.apply(delta(1, 0, "a"))
    assert isinstance(received.miss(1), Gap)
    assert received.miss(1) is None
    resume(state, received, 1)
    assert received.apply(delta(2, 1, "b")) == delta(2, 1, "b")
    with pytest.raises(RemoteProtocolError):
        received.miss(9)

"""The shelf of the journal in memory; its rules are those of the conformance suite."""

from __future__ import annotations

from attrs import evolve

from seedance_server.journal.memory_shelf import HeldStream, Shelf
from seedance_server.journal.records import StreamRecord, StreamState
from tests.server.journal.journal_made import LIMITS, new_stream


def test_sweep_forces_out_only_what_is_too_much():
    """The oldest ended stream goes first, and no more than needed."""
    shelf = Shelf(evolve(LIMITS, tenant_bytes=250))
    for number, ended_ms in ((1, 30), (2, 10), (3, 20)):
        record = StreamRecord(
            session_id="s",
            stream_id=number,
            tenant="t",
            state=StreamState.FINISHED,
            first_available_id=1,
            next_frame_id=1,
            text_bytes=0,
            stored_bytes=100,
            created_ms=0,
            ended_ms=ended_ms,
            finish="stop",
        )
        shelf.streams["s", number] = HeldStream(record, new_stream())
    assert shelf.sweep(40).expired == 1
    assert [record.state for record in shelf.streams_of("s")] == [
        StreamState.FINISHED,
        StreamState.EXPIRED,
        StreamState.FINISHED,
    ]

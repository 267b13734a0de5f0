"""What a journal's file holds, read by nothing of the server's but its tables.

Only for a file whose server has ended: a second reader in another process is fine for SQLite, but a stream
that is still running has no last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from seedance_server.journal.records import FrameRecord
from seedance_wire.messages import Delta, Error, Flush, Frame
from seedance_wire.stored_form import load_frame
from tests.faults.history import JournaledFrame

__all__ = ["StreamName", "frames_of_file", "journaled", "journaled_records"]

StreamName = tuple[str, int]


def journaled(payloads: Sequence[bytes]) -> list[JournaledFrame]:
    """The frames of one stream from their stored forms."""
    return [_frame(load_frame(payload, epoch=1)) for payload in payloads]


def _frame(frame: Frame) -> JournaledFrame:
    is_last = isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)
    text = frame.text if isinstance(frame, Delta) else ""
    digest = frame.final.digest if isinstance(frame, Flush) and frame.final else None
    return JournaledFrame(frame.id, frame.offset, text, is_last, digest)


def journaled_records(records: Sequence[FrameRecord]) -> list[JournaledFrame]:
    """The same from a journal's records."""
    return journaled([record.payload for record in records])


def frames_of_file(path: Path) -> dict[StreamName, list[JournaledFrame]]:
    """Every stream by session and number, with its frames in order."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = {
            key: (session_id, stream_id)
            for key, session_id, stream_id in db.execute(
                "SELECT stream_key, session_id, stream_id FROM streams"
            )
        }
        payloads: dict[StreamName, list[bytes]] = {name: [] for name in names.values()}
        rows = db.execute("SELECT stream_key, payload FROM frames ORDER BY stream_key, frame_id")
        for key, payload in rows:
            payloads[names[key]].append(payload)
    finally:
        db.close()
    return {name: journaled(of_stream) for name, of_stream in payloads.items()}

"""Reported events as lines of JSON in a file that is rotated by size: each exactly once.

A line is on the disk before its event is committed. What a death of the process left behind is put right when
the file is opened: half a line is cut off, and events that come again although they have their line are found
by the id of the last one. Rotated files get a number, the newest the highest; nothing here ever deletes one.

It must not know the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import trio

from seedance_server.event_sink import EventFeed, ReportedEvent

__all__ = ["EventFile"]

_LONGEST_LINE_BYTES = 1_048_576
"""Above any line that can be written: a payload's digits, an action, and names."""


class EventFile:
    """An `EventSink` that writes a file.

    Args:
        path: The file; its directory exists. Rotated ones lie beside it, as ``name.1``, ``name.2`` ...
        rotate_bytes: A file of this size gets no more lines.
    """

    name = "file"

    def __init__(self, path: Path, rotate_bytes: int) -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes

    async def run(self, feed: EventFeed) -> None:
        """See `EventSink.run`."""
        last_id = await trio.to_thread.run_sync(self._recover)
        while True:
            events = await feed.take()
            ids = [event.id for event in events]
            if last_id in ids:  # only what was taken first can be there already
                events = events[ids.index(last_id) + 1 :]
            last_id = None
            await trio.to_thread.run_sync(self._write, events)
            await feed.commit()

    def _recover(self) -> str | None:
        """Cuts half a line off and returns the id of the last event that has its line."""
        with self._open() as file:
            size = file.seek(0, os.SEEK_END)
            kept = file.seek(max(0, size - _LONGEST_LINE_BYTES))
            tail = file.read()
            kept += tail.rfind(b"\n") + 1
            if kept < size:
                file.truncate(kept)
                os.fsync(file.fileno())
        if kept:
            return _last_id(tail[: tail.rfind(b"\n") + 1])
        rotated = self._rotated()
        return _last_id(rotated[-1].read_bytes()[-_LONGEST_LINE_BYTES:]) if rotated else None

    def _open(self) -> BinaryIO:
        # What users do is nobody else's business.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "r+b")

    def _rotated(self) -> list[Path]:
        """Rotated files, the newest last."""
        numbers = {
            int(path.suffix[1:]): path
            for path in self._path.parent.glob(f"{self._path.name}.*")
            if path.suffix[1:].isdecimal()
        }
        return [numbers[number] for number in sorted(numbers)]

    def _write(self, events: Sequence[ReportedEvent]) -> None:
        if not events:
            return
        if self._path.exists() and self._path.stat().st_size >= self._rotate_bytes:
            self._rotate()
        with self._open() as file:
            file.seek(0, os.SEEK_END)
            file.write(b"".join(map(_line, events)))
            file.flush()
            os.fsync(file.fileno())

    def _rotate(self) -> None:
        rotated = self._rotated()
        number = int(rotated[-1].suffix[1:]) + 1 if rotated else 1
        self._path.rename(self._path.with_name(f"{self._path.name}.{number}"))
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _line(event: ReportedEvent) -> bytes:
    members = {
        "id": event.id,
        "tenant": event.tenant,
        "session": event.session_id,
        "received": event.received_ms,
        "timestamp": event.timestamp,
        "user_id": event.user_id,
        "action": event.action,
        "payload": event.payload.hex(),
    }
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _last_id(lines: bytes) -> str | None:
    last = lines.rstrip(b"\n").rpartition(b"\n")[2]
    return str(json.loads(last)["id"]) if last else None

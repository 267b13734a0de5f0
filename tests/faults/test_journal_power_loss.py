"""The power goes, at every kind of moment: what the journal acknowledged is there when it comes back.

`SEEDANCE_POWER_LOSS_POINTS` says at how many moments; `all` for every step of the record.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve, frozen

from seedance_server.journal import session_rows, stream_rows
from seedance_server.journal.errors import JournalError
from seedance_server.journal.operation import Operation
from seedance_server.journal.records import StreamState
from seedance_server.journal.schema import open_reader, open_writer
from seedance_server.journal.writer import FileSystem, Writer
from tests.server.journal.faulty_vfs import FaultyVfs, PowerLoss
from tests.server.journal.journal_made import LIMITS, frames_from, new_session, new_stream

POINTS = os.environ.get("SEEDANCE_POWER_LOSS_POINTS", "40")
PATIENT = evolve(LIMITS, checkpoint_bytes=24 * 1_024)
"""Checkpoints often, so that many moments lie in one."""
SESSIONS = ("a", "b", "c")
COMMITS = 40


@frozen
class _Acknowledged:
    """After ``step`` steps every stream had ``frames`` frames, and ``finished`` said whether it had ended."""

    step: int
    frames: int
    finished: bool


def _record(path: Path, synchronous: str) -> tuple[FaultyVfs, list[_Acknowledged]]:
    """A journal at work: commits of one or two frames for each of three streams, then their ends."""
    acknowledged = []
    with FaultyVfs() as vfs:
        writer = Writer(path, PATIENT, FileSystem(vfs=vfs.name, synchronous=synchronous))
        writer.open(0)
        for name in SESSIONS:
            for run in (
                lambda tx, name=name: session_rows.create_session(tx, new_session(name)),
                lambda tx, name=name: stream_rows.submit(tx, name, 1, new_stream(key=name.encode())),
            ):
                writer.commit([Operation(run)], 1)
        acknowledged.append(_Acknowledged(len(vfs.steps), 0, finished=False))
        written = offset = 0
        for number in range(COMMITS):
            frames = frames_from(written + 1, offset, *[100 + number] * (1 + number % 2))
            finish = "stop" if number == COMMITS - 1 else None
            batch = [
                Operation(lambda tx, s=s, f=frames, e=finish: stream_rows.append(tx, s, 1, 1, f, e))
                for s in SESSIONS
            ]
            outcomes = writer.commit(batch, 2 + number)
            assert [outcome.error for outcome in outcomes] == [None] * len(SESSIONS)
            if writer.wants_checkpoint:
                writer.checkpoint()
            written += len(frames)
            offset += sum(frame.size for frame in frames)
            acknowledged.append(_Acknowledged(len(vfs.steps), written, finish is not None))
        recorded = len(vfs.steps)
        writer.close()
        del vfs.steps[recorded:]  # what closing flushes is no merit of the commits
    return vfs, acknowledged


def _lost(directory: Path, files: dict[str, bytes], expected: _Acknowledged) -> bool:
    """Whether the journal that the power left lacks something; that it is damaged fails at once."""
    for old in directory.iterdir():
        old.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    path = directory / "journal.db"
    open_writer(path, PATIENT).close()  # checks the whole file, after SQLite's own recovery
    db = open_reader(path, PATIENT)
    try:
        for name in SESSIONS:
            try:
                page = stream_rows.read_frames(db, name, 1, 0, 1_000, 10**9)
            except JournalError:
                return True
            record = page.record
            assert [frame.id for frame in page.frames] == list(range(1, record.next_frame_id))
            assert sum(frame.size for frame in page.frames) == record.text_bytes
            if record.last_id < expected.frames:
                return True
            if expected.finished and record.state is not StreamState.FINISHED:
                return True
    finally:
        db.close()
    return False


def _losses(tmp_path: Path, synchronous: str, seed: int | None) -> tuple[int, int]:
    """How many moments there were, and at how many of them something acknowledged was lost."""
    made, left = tmp_path / "made", tmp_path / "left"
    made.mkdir()
    left.mkdir()
    vfs, acknowledged = _record(made / "journal.db", synchronous)
    first = acknowledged[0].step
    moments = range(first, len(vfs.steps) + 1)
    if POINTS != "all":
        moments = moments[:: max(1, len(moments) // int(POINTS))]
    disk, lost, followed = PowerLoss(), 0, 0
    for moment in moments:
        for step in vfs.steps[followed:moment]:
            disk.follow(step)
        followed = moment
        expected = max((a for a in acknowledged if a.step <= moment), key=lambda a: a.step)
        files = disk.files(None if seed is None else seed + moment)
        lost += _lost(left, files, expected)
    return len(moments), lost


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1], ids=["nothing-unflushed", "some-unflushed"])
def test_nothing_acknowledged_is_lost_when_the_power_goes(tmp_path: Path, seed: int | None):
    """A frame is sent only if no power loss can take it back: each commit is flushed before it returns."""
    moments, lost = _losses(tmp_path, "FULL", seed)
    assert moments >= 40
    assert lost == 0


@pytest.mark.slow
def test_less_than_full_would_lose_commits(tmp_path: Path):
    """The control: without a flush at each commit the same moments do lose, so the test above can fail."""
    moments, lost = _losses(tmp_path, "NORMAL", None)
    assert lost > moments // 4

"""The disk fails or fills up under the journal: nothing acknowledged is lost, and it recovers by itself.

`SEEDANCE_STORAGE_FAULTS` says at how many steps a fault is injected.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from attrs import define, evolve

from seedance_server.journal import stream_rows
from seedance_server.journal.errors import Fenced, JournalError, JournalFailed, JournalFull
from seedance_server.journal.records import StreamState
from seedance_server.journal.schema import open_reader, open_writer
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.journal.writer import FileSystem
from tests.server.journal.faulty_vfs import FaultyVfs, Step, io_error
from tests.server.journal.journal_made import (
    LIMITS,
    InlineExecutor,
    frames_from,
    new_session,
    new_stream,
    running,
)

FAULTS = int(os.environ.get("SEEDANCE_STORAGE_FAULTS", "25"))
BUSY_DISK = evolve(LIMITS, checkpoint_bytes=24 * 1_024, reopen_interval_s=1)
APPENDS = 24
CODES = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def _journal(path: Path, vfs: FaultyVfs, **limits: float) -> SqliteJournal:
    return SqliteJournal(
        path, evolve(BUSY_DISK, **limits), executor=InlineExecutor(), files=FileSystem(vfs=vfs.name)
    )


@define
class _Appender:
    """The owner of one stream as a server would be: after a failure it adopts, reads the tail and goes on."""

    journal: SqliteJournal
    epoch: int = 1
    acknowledged: int = 0
    failures: int = 0
    unknown: int = 0

    async def adopt(self) -> None:
        while True:
            try:
                claimed = await self.journal.adopt_session("s")
            except JournalError:
                await trio.sleep(1)
                continue
            assert claimed.session.epoch > self.epoch
            self.epoch = claimed.session.epoch
            return self._look(claimed.streams[0].last_id)

    def _look(self, last_id: int) -> None:
        """One append was on its way at most: it is there or not, and nothing else changed."""
        assert self.acknowledged <= last_id <= self.acknowledged + 1
        self.acknowledged = last_id

    async def append(self) -> None:
        frames = frames_from(self.acknowledged + 1, 600 * self.acknowledged, 600)
        try:
            await self.journal.append("s", self.epoch, 1, frames)
        except JournalFailed as error:
            self.failures += 1
            self.unknown += error.unknown
            with pytest.raises((Fenced, JournalFailed)):  # the session was fenced with its failure
                await self.journal.append("s", self.epoch, 1, frames)
            await self.adopt()
        else:
            self.acknowledged += 1


async def _work(path: Path, vfs: FaultyVfs, arm: Callable[[], None]) -> _Appender:
    async with running(_journal(path, vfs)) as journal:
        await journal.create_session(new_session())
        await journal.submit("s", 1, new_stream())
        arm()
        appender = _Appender(journal)
        while appender.acknowledged < APPENDS:
            await appender.append()
        await trio.sleep(60)  # for a failure of what follows the last commit
        assert journal.trouble() is None
    return appender


def _check_whole(path: Path, acknowledged: int) -> None:
    """What a start on the same file, without faults, finds."""
    open_writer(path, LIMITS).close()
    db = open_reader(path, LIMITS)
    stored = stream_rows.load_stream(db, "s", 1)
    db.close()
    assert stored.record.last_id == acknowledged
    assert stored.token_ids[::2] == tuple(range(1, acknowledged + 1))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """The first step of the appends and how many there are, when nothing fails."""
    first = []

    async def count() -> int:
        with FaultyVfs() as vfs:
            await _work(
                tmp_path_factory.mktemp("dry") / "journal.db", vfs, lambda: first.append(len(vfs.steps))
            )
            return len(vfs.steps)

    total = trio.run(count, clock=trio.testing.MockClock(autojump_threshold=0))
    return first[0], total - first[0]


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [1, 7], ids=["once", "lasting"])
async def test_io_error_at_any_step_loses_nothing_acknowledged(
    path: Path, steps: tuple[int, int], lasting: int, autojump_clock
):
    """An error of the disk means unknown: fence, open again, read the tail, go on from there."""
    first, count = steps
    failures = unknown = 0
    for number in range(FAULTS):
        for old in path.parent.iterdir():
            old.unlink()
        with FaultyVfs() as vfs:
            due = [first + count * number // FAULTS]
            left = [lasting]

            def fail(step_number: int, step: Step, due=due, left=left) -> None:
                if step_number >= due[0] and left[0]:
                    left[0] -= 1
                    raise io_error(CODES[step.kind])

            appender = await _work(path, vfs, lambda vfs=vfs, fail=fail: setattr(vfs, "before", fail))
            vfs.before = lambda number, step: None
        failures += appender.failures
        unknown += appender.unknown
        _check_whole(path, appender.acknowledged)
    assert failures >= FAULTS // 2
    assert unknown > 0


@pytest.mark.slow
async def test_full_disk_at_any_size_loses_nothing_acknowledged(path: Path, autojump_clock):
    """A frame that doesn't fit is refused, not half written; with room again the stream goes on."""
    refusals = 0
    for number in range(FAULTS):
        for old in path.parent.iterdir():
            old.unlink()
        with FaultyVfs() as vfs:
            async with running(_journal(path, vfs)) as journal:
                await journal.create_session(new_session())
                await journal.submit("s", 1, new_stream())
                room = sum(vfs.sizes.values()) + 37_500 * number // FAULTS
                vfs.capacity = lambda room=room: room
                acknowledged = 0
                while acknowledged < APPENDS:
                    frames = frames_from(acknowledged + 1, 600 * acknowledged, 600)
                    try:
                        await journal.append("s", 1, 1, frames)
                    except JournalFull:
                        assert journal.trouble() is None
                        assert journal.shortage() == "the journal's disk is full"
                        refusals += 1
                        vfs.capacity = lambda: float("inf")
                    else:
                        assert journal.shortage() is None
                        acknowledged += 1
        _check_whole(path, acknowledged)
    assert refusals >= FAULTS // 2


async def test_full_disk_takes_finished_streams_first(path: Path, autojump_clock):
    """What was answered long ago gives way to what is being answered, and no caller notices."""
    with FaultyVfs() as vfs:
        async with running(_journal(path, vfs)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream(1))
            await journal.submit("s", 1, new_stream(2))
            await journal.append("s", 1, 2, frames_from(1, 0, *[400] * 100), finish="stop")
            room = sum(vfs.sizes.values()) + 400_000
            ballast = [400_000]  # taken by others: gone after the first attempt
            vfs.capacity = lambda: room - ballast[0] * (journal.statistics().full == 0)
            for number in range(60):
                await journal.append("s", 1, 1, frames_from(number + 1, 600 * number, 600))
            assert journal.statistics().full > 0
            claimed = await journal.adopt_session("s")
    states = {stream.stream_id: stream.state for stream in claimed.streams}
    assert states == {1: StreamState.LIVE, 2: StreamState.EXPIRED}


async def test_disk_that_stays_broken_refuses_at_once_and_recovers(path: Path, autojump_clock):
    """Nobody hangs on a dead disk; when it is back, so is the journal, without a restart."""
    broken = [False]

    def fail(number: int, step: Step) -> None:
        if broken[0]:
            raise io_error(CODES[step.kind])

    with FaultyVfs(before=fail) as vfs:
        async with running(_journal(path, vfs, reopen_interval_s=5)) as journal:
            await journal.create_session(new_session())
            await journal.submit("s", 1, new_stream())
            await trio.testing.wait_all_tasks_blocked()  # the log is moved: the append is what breaks
            broken[0] = True
            with pytest.raises(JournalFailed):
                await journal.append("s", 1, 1, frames_from(1, 0, 1))
            with trio.fail_after(5), pytest.raises(JournalFailed) as caught:
                await journal.adopt_session("s")
            assert not caught.value.unknown
            assert "failed" in (journal.trouble() or "")
            with pytest.raises(JournalFailed):
                await journal.read_frames("s", 1, 0, 1)
            broken[0] = False
            await trio.sleep(5)
            await trio.testing.wait_all_tasks_blocked()
            assert journal.trouble() is None
            assert (await journal.adopt_session("s")).session.epoch == 3  # fenced once, adopted once
            assert journal.statistics().reopened == 1

"""The SQLite journal: every rule of a journal, and what is its own: commits, locks, threads, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio
from attrs import evolve

from seedance_server.journal.errors import Fenced, JournalFull, JournalInUse, JournalUnusable
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.journal.writer import FileSystem
from tests.server.journal.conformance import JournalConformance
from tests.server.journal.event_conformance import EventConformance
from tests.server.journal.frame_conformance import FrameConformance
from tests.server.journal.journal_made import (
    LIMITS,
    InlineExecutor,
    MakeJournal,
    WallClock,
    frames_from,
    new_session,
    new_stream,
    running,
)
from tests.server.journal.move_conformance import MoveConformance
from tests.server.journal.retention_conformance import RetentionConformance


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture
def make_journal(path: Path, wall_clock: WallClock) -> MakeJournal:
    return lambda limits: SqliteJournal(path, limits, wall_clock=wall_clock, executor=InlineExecutor())


class TestSqliteJournal(JournalConformance):
    """The rules of sessions and requests."""


class TestSqliteJournalFrames(FrameConformance):
    """The rules of writing frames, and of reading them again."""


class TestSqliteJournalMoves(MoveConformance):
    """The rules of a stream that changes its session."""


class TestSqliteJournalRetention(RetentionConformance):
    """The rules of forgetting."""


class TestSqliteJournalEvents(EventConformance):
    """The rules of reported events."""


async def test_operations_of_many_tasks_share_commits(path: Path):
    """A flush of the disk costs more than a row: what comes together is committed together."""
    async with running(SqliteJournal(path, LIMITS)) as journal:
        await journal.create_session(new_session())
        before = journal.statistics()
        async with trio.open_nursery() as nursery:
            for sequence_id in range(1, 33):
                nursery.start_soon(journal.submit, "s", 1, new_stream(sequence_id))
        after = journal.statistics()
    assert after.operations - before.operations == 32
    assert after.commits - before.commits <= 3
    assert after.largest_commit >= 16


async def test_fenced_session_leaves_no_trace_in_a_shared_commit(path: Path):
    """One refused operation takes only itself back."""
    errors = []

    async def append(journal: SqliteJournal, session_id: str) -> None:
        try:
            await journal.append(session_id, 1, 1, frames_from(1, 0, 3))
        except Fenced as error:
            errors.append(error.session_id)

    journal = SqliteJournal(path, LIMITS)
    async with running(journal):
        for session_id in "abc":
            await journal.create_session(new_session(session_id))
            await journal.submit(session_id, 1, new_stream(key=session_id.encode()))
        await journal.adopt_session("b")
        commits = journal.statistics().commits
        async with trio.open_nursery() as nursery:
            for session_id in "abc":
                nursery.start_soon(append, journal, session_id)
        assert errors == ["b"]
        assert journal.statistics().commits == commits + 1
        assert [(await journal.find_stream(s, 1)).text_bytes for s in "abc"] == [3, 0, 3]


async def test_bug_in_one_operation_is_its_callers_alone(path: Path):
    """A value that can't be stored fails its own operation, and nothing of it is written."""
    results = []

    async def submit(journal: SqliteJournal, sequence_id: int, seed: int) -> None:
        try:
            results.append(
                (await journal.submit("s", 1, new_stream(sequence_id, seed=seed))).stream.stream_id
            )
        except OverflowError:
            results.append(None)

    journal = SqliteJournal(path, LIMITS)
    async with running(journal):
        await journal.create_session(new_session())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, journal, 1, 2**64)
            nursery.start_soon(submit, journal, 2, 1)
        assert sorted(results, key=str) == [1, None]
        assert await journal.record_message("s", 1, 1) == 2


async def test_second_owner_is_refused(path: Path):
    """Two servers on one journal would take each other's sessions over."""
    async with running(SqliteJournal(path, LIMITS)):
        with pytest.raises(JournalInUse) as caught:
            await SqliteJournal(path, LIMITS).run()
        assert caught.value.pid == os.getpid()
        link = path.with_name("link.db")
        link.symlink_to(path)
        with pytest.raises(JournalInUse):
            await SqliteJournal(link, LIMITS).run()
    async with running(SqliteJournal(path, LIMITS)):
        pass


_PROGRAM = """
import sys, trio
from pathlib import Path
from seedance_server.journal.sqlite import SqliteJournal
from tests.server.journal.event_conformance import EventConformance
from tests.server.journal.journal_made import LIMITS, frames_from, new_session, new_stream, running

async def main():
    async with running(SqliteJournal(Path(sys.argv[1]), LIMITS)) as journal:
        await journal.create_session(new_session())
        await journal.submit("s", 1, new_stream())
        for number in range(1, 1_000_000):
            await journal.append("s", 1, 1, frames_from(number, number - 1, 1))
            print(number, flush=True)

trio.run(main)
"""


@pytest.mark.slow
def test_killed_process_loses_nothing_acknowledged(path: Path):
    """The lock goes with the process, and the next one finds everything that was acknowledged."""
    repository = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(path)], stdout=subprocess.PIPE, text=True, cwd=repository
    ) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(50)]

        async def second_owner() -> None:
            with pytest.raises(JournalInUse) as caught:
                await SqliteJournal(path, LIMITS).run()
            assert caught.value.pid == process.pid

        trio.run(second_owner)
        process.send_signal(signal.SIGKILL)
        acknowledged += map(int, process.stdout.read().split("\n")[:-1])

    async def recover() -> None:
        async with running(SqliteJournal(path, LIMITS)) as journal:
            (claimed,) = await journal.recover()
            assert acknowledged[-1] <= claimed.streams[0].last_id <= acknowledged[-1] + 1
            stored = await journal.load_stream("s", 1)
            assert stored.token_ids[-2] == claimed.streams[0].last_id

    trio.run(recover)


async def test_directory_that_is_missing_is_an_error_in_one_line(path: Path):
    """A wrong path ends the start, and nothing is made on the way."""
    with pytest.raises(JournalUnusable, match=r"lock.*No such file"):
        await SqliteJournal(path.parent / "missing" / "journal.db", LIMITS).run()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_nothing_of_it_is_left_when_it_has_ended(path: Path):
    """After a stop no thread, descriptor or lock remains."""
    threads, descriptors = threading.active_count(), _descriptors()
    journal = SqliteJournal(path, LIMITS)
    async with running(journal):
        await journal.create_session(new_session())
        await journal.submit("s", 1, new_stream())
        await journal.find_stream("s", 1)
        assert _descriptors() > descriptors
    assert "seedance-journal" not in {thread.name for thread in threading.enumerate()}
    assert threading.active_count() <= threads + 1  # trio keeps its last worker thread for a while
    assert _descriptors() == descriptors
    assert _names(path.parent) == {"journal.db", "journal.db.lock"}


async def test_new_work_is_refused_before_the_disk_is_full(path: Path, mock_clock):
    """What is left on the disk belongs to the streams that live; room found again is noticed."""
    free = [10_000]
    files = FileSystem(free_bytes=lambda _: free[0])
    limits = evolve(LIMITS, soft_free_bytes=20_000)
    async with running(SqliteJournal(path, limits, executor=InlineExecutor(), files=files)) as journal:
        await journal.create_session(new_session())
        with pytest.raises(JournalFull) as caught:
            await journal.submit("s", 1, new_stream())
        assert caught.value.new_work
        free[0] = 30_000
        mock_clock.jump(limits.free_check_s)
        await journal.submit("s", 1, new_stream())
        free[0] = 0
        mock_clock.jump(limits.free_check_s)
        await journal.append("s", 1, 1, frames_from(1, 0, 1))
        assert (await journal.submit("s", 1, new_stream())).replayed


async def test_disk_that_is_nearly_full_is_told_once_and_so_is_its_end(path: Path, mock_clock):
    """Whoever looks at the log at night sees why requests are refused, and not a line for each."""
    free = [10_000]
    files = FileSystem(free_bytes=lambda _: free[0])
    limits = evolve(LIMITS, soft_free_bytes=20_000)
    with structlog.testing.capture_logs() as said:
        async with running(SqliteJournal(path, limits, executor=InlineExecutor(), files=files)) as journal:
            assert "nearly full: 10000 bytes are free, 20000 are kept" in journal.shortage()
            assert journal.trouble() is None
            await journal.create_session(new_session())
            for _ in range(3):
                mock_clock.jump(limits.free_check_s)
                with pytest.raises(JournalFull):
                    await journal.submit("s", 1, new_stream())
            free[0] = 30_000
            mock_clock.jump(limits.free_check_s)
            await journal.submit("s", 1, new_stream())
            assert journal.shortage() is None
    nearly_full, again = said
    assert (nearly_full["log_level"], nearly_full["free_bytes"], nearly_full["needed_bytes"]) == (
        "warning",
        10_000,
        20_000,
    )
    assert (again["log_level"], again["free_bytes"]) == ("info", 30_000)


async def test_cancelled_while_it_is_written_is_written(path: Path):
    """A commit can't be called back, so the caller learns its outcome and not that it was cancelled."""
    entered, leave = threading.Event(), threading.Event()

    class SlowExecutor:
        async def call(self, function, *, abandon_on_cancel=False):
            def slowly():
                entered.set()
                leave.wait(10)
                return function()

            return await trio.to_thread.run_sync(slowly)

    leave.set()
    async with running(SqliteJournal(path, LIMITS, executor=SlowExecutor())) as journal:
        await journal.create_session(new_session())
        await journal.submit("s", 1, new_stream())
        entered.clear()
        leave.clear()
        done = []

        async def append() -> None:
            done.append(await journal.append("s", 1, 1, frames_from(1, 0, 1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.to_thread.run_sync(entered.wait, 10)
            nursery.cancel_scope.cancel()
            leave.set()
        assert len(done) == 1
        assert (await journal.find_stream("s", 1)).last_id == 1


async def test_readers_see_a_stream_whole_while_it_is_written(path: Path):
    """Pages read beside the writer are prefixes that never shrink."""
    limits = evolve(LIMITS, max_page_frames=7)
    last_ids = []

    async def read(journal: SqliteJournal) -> None:
        frames = []
        while len(frames) < 50:
            page = await journal.read_frames("s", 1, len(frames), 100)
            frames += page.frames
            last_ids.append(page.record.last_id)
        assert frames == frames_from(1, 0, *[2] * 50)

    journal = SqliteJournal(path, limits)
    async with running(journal):
        await journal.create_session(new_session())
        await journal.submit("s", 1, new_stream())
        async with trio.open_nursery() as nursery:
            for _ in range(limits.readers + 1):
                nursery.start_soon(partial(read, journal))
            for frame in frames_from(1, 0, *[2] * 50):
                await journal.append("s", 1, 1, [frame])
    assert max(last_ids) == 50


async def test_room_on_the_disk_is_noticed_without_a_request(path: Path, autojump_clock):
    """Whoever reads that no new work is taken sends none; the journal must look again by itself."""
    free = [10_000]
    files = FileSystem(free_bytes=lambda _: free[0])
    limits = evolve(LIMITS, soft_free_bytes=20_000, sweep_interval_s=10)
    async with running(SqliteJournal(path, limits, executor=InlineExecutor(), files=files)) as journal:
        await trio.sleep(25)
        assert journal.shortage() is not None
        free[0] = 30_000
        await trio.sleep(10)
        assert journal.shortage() is None
        assert journal.statistics().space.free_bytes == 30_000
        assert journal.statistics().space.file_bytes > 0

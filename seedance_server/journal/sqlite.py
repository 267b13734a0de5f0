"""The default journal: one SQLite file, one writer, many readers.

All writing goes through a queue to one thread that commits what has gathered; the task that asked for it
sleeps until its commit is on the disk. Reading goes around the writer, on connections that can't write. One
process owns the file, by a lock beside it; epochs fence whoever believes otherwise.

The journal's clock is the wall clock of the moment it was opened, moved on by the monotonic one: a wall clock
that jumps neither ends nor prolongs anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import attrs
import structlog
import trio

from seedance_server.decode_thread import DecodeThread, Executor
from seedance_server.journal import event_rows, retention, session_rows, stream_rows
from seedance_server.journal.append import Append
from seedance_server.journal.commit_queue import CommitQueue, settle_all
from seedance_server.journal.errors import JournalClosed, JournalError, JournalFailed, JournalFull
from seedance_server.journal.figures import Figures
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.lock_file import LockFile
from seedance_server.journal.operation import Operation, Outcome
from seedance_server.journal.reader_pool import ReaderPool
from seedance_server.journal.records import (
    ClaimedSession,
    EventBatch,
    FramePage,
    FrameRecord,
    JournalStatistics,
    NewEventBatch,
    NewSession,
    NewStream,
    SessionRecord,
    StoredStream,
    StreamRecord,
    Submission,
    SweepResult,
)
from seedance_server.journal.writer import DiskFull, FileSystem, StorageFailed, Writer

__all__ = ["SqliteJournal"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class SqliteJournal:
    """A `Journal` in one file.

    Resource handling: `run` owns the file, the lock, the connections and, unless it is given an executor, the
    writer's thread; when it has ended they are gone. It runs once.

    Args:
        path: The file; its directory exists and is on a local disk. ``.lock``, ``.ballast``, ``-wal`` and
            ``-shm`` lie beside it.
        limits: Bounds.
        wall_clock: Seconds since 1970.
        executor: Where the writer runs; None for a thread of its own.
        files: Ways to the disk.
    """

    def __init__(
        self,
        path: Path,
        limits: JournalLimits | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        executor: Executor | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._limits = limits or JournalLimits()
        self._wall_clock = wall_clock
        self._thread: DecodeThread | None = None
        if executor is None:
            executor = self._thread = DecodeThread("seedance-journal")
        self._executor: Executor = executor
        files = files or FileSystem()
        path = path.resolve()  # whatever links lead to it, one file has one lock
        self._lock = LockFile(path)
        self._writer = Writer(path, self._limits, files)
        self._readers = ReaderPool(path, self._limits, files.vfs)
        self._queue = CommitQueue(self._limits)
        self._queue.close(JournalClosed)
        self._figures = Figures()
        self._is_full = False
        self._is_open = False
        self._failure: str | None = None
        self._opened_ms = 0.0
        self._opened_s = 0.0

    # ---- its own task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Journal.run`."""
        await trio.to_thread.run_sync(self._lock.acquire)
        if self._thread is not None:
            self._thread.start()
        self._opened_ms, self._opened_s = self._wall_clock() * 1e3, trio.current_time()
        try:
            await self._executor.call(partial(self._writer.open, self._now_ms()))
            self._is_open = True
            self._queue.open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep_for_ever)
                task_status.started()
                await self._commit_for_ever()
        finally:
            self._is_open = False
            self._queue.close(JournalClosed)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._limits.close_timeout_s):
                await self._close()

    async def _close(self) -> None:
        self._readers.close()  # first: only the last connection clears the log away, and only one that writes
        await self._executor.call(self._writer.close, abandon_on_cancel=True)
        if self._thread is not None:
            await self._thread.stop(self._limits.close_timeout_s)
        # Not reached by a writer that hangs in the disk: then the lock stays as long as the process.
        self._lock.release()

    def _now_ms(self) -> int:
        return round(self._opened_ms + (trio.current_time() - self._opened_s) * 1e3)

    async def _commit_for_ever(self) -> None:
        while True:
            tickets = await self._queue.take()
            batch = [operation for ticket in tickets for operation in ticket.operations]
            failure = None
            # Taken is taken: a cancellation finds these tasks again when all have their outcome.
            with trio.CancelScope(shield=True):
                try:
                    outcomes = await self._commit(batch)
                except Exception as error:  # noqa: BLE001 - whatever it was, somebody waits for each ticket
                    failure = error
                    outcomes = [self._failed(error) for _ in batch]
                await settle_all(tickets, outcomes)
            if failure is None and self._writer.wants_checkpoint:
                try:
                    await self._executor.call(self._writer.checkpoint)
                except StorageFailed as error:
                    failure = error
            if failure is not None:
                self._figures.failures += 1
                self._failure = f"the storage failed ({failure})"
                _log.error("journal failed", exc_info=failure, operations=len(batch))
                await self._reopen()

    @staticmethod
    def _failed(error: Exception) -> Outcome:
        unknown = error.unknown if isinstance(error, StorageFailed) else True
        return Outcome(error=JournalFailed(str(error), unknown=unknown))

    async def _commit(self, batch: list[Operation]) -> list[Outcome]:
        started_s = trio.current_time()
        outcomes = await self._commit_on_full_disk(batch)
        self._figures.note_commit(batch, outcomes, trio.current_time() - started_s)
        return outcomes

    async def _commit_on_full_disk(self, batch: list[Operation]) -> list[Outcome]:
        pause_s = self._limits.full_retry_s
        outcomes: list[Outcome]
        for attempt in range(self._limits.full_retries + 1):
            try:
                outcomes = await self._executor.call(partial(self._writer.commit, batch, self._now_ms()))
            except DiskFull:
                self._figures.full += 1
                _log.warning("journal's disk is full", attempt=attempt, operations=len(batch))
            else:
                self._is_full = False
                return outcomes
            if attempt == self._limits.full_retries:
                break
            if not await self._executor.call(partial(self._writer.make_room, self._now_ms())):
                await trio.sleep(pause_s)  # nothing of ours is left to give up: others may free space
                pause_s *= 2
        self._is_full = True
        return [Outcome(error=JournalFull(new_work=False)) for _ in batch]

    async def _reopen(self) -> None:
        """Opens the file again, however long it takes; who waits is told after a few attempts."""
        pause_s = self._limits.reopen_pause_s
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._executor.call(partial(self._writer.reopen, self._now_ms()))
                break
            except StorageFailed as failure:
                self._failure = f"the storage failed ({failure.reason})"
                _log.error("journal can't be reopened", reason=failure.reason, attempt=attempt)
            if attempt < self._limits.reopen_attempts:
                await trio.sleep(pause_s)
                pause_s *= 2
            else:
                self._queue.close(lambda: JournalFailed("the storage failed", unknown=False))
                await trio.sleep(self._limits.reopen_interval_s)
        self._figures.reopened += 1
        self._failure = None
        self._queue.open()
        _log.info("journal reopened", attempts=attempt)

    async def _sweep_for_ever(self) -> None:
        while True:
            await trio.sleep(self._limits.sweep_interval_s)
            try:
                await self.sweep()
                await self._executor.call(self._writer.restore_ballast)
                await self._executor.call(partial(self._writer.look_at_space, self._now_ms()))
            except JournalFailed:
                continue  # told where it happened; the next round may do better
            except Exception:  # noqa: BLE001 - what can wait for the next round must not end the journal
                _log.exception("sweep failed")

    def trouble(self) -> str | None:
        """See `Journal.trouble`."""
        return self._failure if self._is_open else "the journal isn't open"

    def shortage(self) -> str | None:
        """See `Journal.shortage`."""
        space = self._writer.space
        if self._is_full:
            return "the journal's disk is full"
        if space.free_bytes < self._limits.soft_free_bytes:
            needed = self._limits.soft_free_bytes
            return f"the journal's disk is nearly full: {space.free_bytes} bytes are free, {needed} are kept"
        return None

    def statistics(self) -> JournalStatistics:
        """See `Journal.statistics`."""
        return self._figures.statistics(self._queue, self._writer.space)

    # ---- writing

    async def _write(self, run: Callable[..., T], *values: Any, session_id: str | None = None) -> T:
        result: T = await self._queue.put(Operation(lambda tx: run(tx, *values), session_id))
        return result

    async def create_session(self, session: NewSession) -> SessionRecord:
        """See `Journal.create_session`."""
        return await self._write(session_rows.create_session, session, session_id=session.session_id)

    async def claim_session(self, session_id: str, tenant: str, token_hash: bytes) -> ClaimedSession:
        """See `Journal.claim_session`."""
        return await self._write(
            session_rows.claim_session, session_id, tenant, token_hash, session_id=session_id
        )

    async def adopt_session(self, session_id: str) -> ClaimedSession:
        """See `Journal.adopt_session`."""
        return await self._write(session_rows.adopt_session, session_id, session_id=session_id)

    async def recover(self) -> tuple[ClaimedSession, ...]:
        """See `Journal.recover`."""
        return await self._write(session_rows.recover)

    async def release_session(self, session_id: str, epoch: int) -> None:
        """See `Journal.release_session`."""
        await self._write(session_rows.release_session, session_id, epoch, session_id=session_id)

    async def record_message(self, session_id: str, epoch: int, sequence_id: int) -> int:
        """See `Journal.record_message`."""
        return await self._write(
            session_rows.record_message, session_id, epoch, sequence_id, session_id=session_id
        )

    async def submit(
        self,
        session_id: str,
        epoch: int,
        stream: NewStream,
        committed: Callable[[Submission], None] | None = None,
    ) -> Submission:
        """See `Journal.submit`."""
        size = len(stream.request) + 4 * len(stream.prompt_ids)
        operation = Operation(
            lambda tx: stream_rows.submit(tx, session_id, epoch, stream), session_id, rows=4, size=size
        )
        submission: Submission = await self._queue.put(operation, committed)
        return submission

    async def append(
        self,
        session_id: str,
        epoch: int,
        stream_id: int,
        frames: Sequence[FrameRecord],
        *,
        finish: str | None = None,
    ) -> int:
        """See `Journal.append`."""
        append = Append(session_id, epoch, stream_id, frames)
        committed_ms: int = await self._queue.put(_appending(append, finish))
        return committed_ms

    async def append_all(self, appends: Sequence[Append]) -> Sequence[Exception | None]:
        """See `Journal.append_all`."""
        try:
            outcomes = await self._queue.put_all([_appending(append) for append in appends])
        except JournalError as error:
            return [error] * len(appends)
        return [outcome.error for outcome in outcomes]

    async def abandon(self, session_id: str, epoch: int, stream_id: int) -> None:
        """See `Journal.abandon`."""
        await self._write(stream_rows.abandon, session_id, epoch, stream_id, session_id=session_id)

    async def note_attempt(self, session_id: str, epoch: int, stream_id: int) -> int:
        """See `Journal.note_attempt`."""
        return await self._write(
            stream_rows.note_attempt, session_id, epoch, stream_id, session_id=session_id
        )

    async def take_events(self, session_id: str, epoch: int, batch: NewEventBatch) -> int:
        """See `Journal.take_events`."""
        last_id: int = await self._queue.put(
            Operation(
                lambda tx: event_rows.take_events(tx, session_id, epoch, batch),
                session_id,
                rows=3,
                size=len(batch.payload),
            )
        )
        return last_id

    async def commit_events(self, sink: str, key: int, *, forget_up_to: int) -> None:
        """See `Journal.commit_events`."""
        await self._write(event_rows.commit_events, sink, key, forget_up_to)

    async def sweep(self) -> SweepResult:
        """See `Journal.sweep`; one portion after the other, so that live streams get their turn between."""
        swept = SweepResult()
        while portion := await self._write(retention.sweep_step):
            swept += portion
        self._figures.abandoned += len(swept.abandoned)
        if swept:
            _log.info(
                "journal swept", **attrs.asdict(swept, filter=lambda field, _: field.name != "abandoned")
            )
        return swept

    # ---- reading

    async def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        if not self._is_open:
            raise JournalClosed
        if self._failure is not None:
            # What is found now may not be on the disk yet.
            raise JournalFailed(self._failure, unknown=False)
        return await self._readers.run(query)

    async def read_frames(self, session_id: str, stream_id: int, after_id: int, limit: int) -> FramePage:
        """See `Journal.read_frames`."""
        count = min(limit, self._limits.max_page_frames)
        size = self._limits.page_bytes
        return await self._read(
            lambda db: stream_rows.read_frames(db, session_id, stream_id, after_id, count, size)
        )

    async def load_stream(self, session_id: str, stream_id: int) -> StoredStream:
        """See `Journal.load_stream`."""
        return await self._read(lambda db: stream_rows.load_stream(db, session_id, stream_id))

    async def find_stream(self, session_id: str, stream_id: int) -> StreamRecord:
        """See `Journal.find_stream`."""
        return await self._read(lambda db: stream_rows.find_stream(db, session_id, stream_id))

    async def knows_request(self, tenant: str, idempotency_key: bytes) -> bool:
        """See `Journal.knows_request`."""
        return await self._read(lambda db: stream_rows.knows_request(db, tenant, idempotency_key))

    async def read_events(self, after_key: int) -> tuple[EventBatch, ...]:
        """See `Journal.read_events`."""
        count, size = self._limits.max_page_frames, self._limits.page_bytes
        return await self._read(lambda db: event_rows.read_events(db, after_key, count, size))

    async def event_cursor(self, sink: str) -> int:
        """See `Journal.event_cursor`."""
        return await self._read(lambda db: event_rows.event_cursor(db, sink))


def _appending(append: Append, finish: str | None = None) -> Operation:
    session_id, epoch, stream_id, frames = append.session_id, append.epoch, append.stream_id, append.frames
    return Operation(
        lambda tx: stream_rows.append(tx, session_id, epoch, stream_id, frames, finish),
        session_id,
        rows=len(frames),
        size=sum(len(frame.payload) + 4 * len(frame.token_ids) for frame in frames),
    )

"""A journal without a disk, for tests and for looking at: the same rules, in plain dictionaries.

It passes the same conformance suite as the others, and forgets everything with its process. An operation is
one step of the event loop, so there is nothing to commit and nothing to fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hmac import compare_digest

import trio
from attrs import evolve

from seedance_server.journal.append import Append, append_each
from seedance_server.journal.errors import (
    CursorAhead,
    Fenced,
    IdempotencyMismatch,
    JournalClosed,
    OutOfOrder,
    RequestInUse,
    SessionNotFound,
    StreamEnded,
    StreamExpired,
    StreamNotFound,
    TooManyEarlyMessages,
)
from seedance_server.journal.frame_check import check_frames
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory_events import HeldEvents
from seedance_server.journal.memory_shelf import HeldRequest, HeldSession, HeldStream, Shelf
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
    StreamState,
    Submission,
    SweepResult,
)
from seedance_server.journal.retention import stored_size
from seedance_server.journal.token_ids import pack_token_ids

__all__ = ["MemoryJournal"]

_NO_HASH = bytes(32)


class MemoryJournal:
    """A `Journal` in memory. What was written stays for the next `run` of the same object.

    Args:
        limits: Bounds; those of the disk and the writer mean nothing here.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self, limits: JournalLimits | None = None, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._limits = limits or JournalLimits()
        self._wall_clock = wall_clock
        self._is_open = False
        self._opened_ms = 0.0
        self._opened_s = 0.0
        self._operations = self._abandoned = 0
        self._shelf = Shelf(self._limits)
        self._events = HeldEvents(self._limits)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `Journal.run`."""
        self._opened_ms, self._opened_s = self._wall_clock() * 1e3, trio.current_time()
        self._is_open = True
        self._shelf.release_all(self._now_ms())
        task_status.started()
        try:
            while True:
                await trio.sleep(self._limits.sweep_interval_s)
                await self.sweep()
        finally:
            self._is_open = False

    def _now_ms(self) -> int:
        return round(self._opened_ms + (trio.current_time() - self._opened_s) * 1e3)

    async def _enter(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._is_open:
            raise JournalClosed
        self._operations += 1

    def trouble(self) -> str | None:
        """See `Journal.trouble`."""
        return None if self._is_open else "the journal isn't open"

    def shortage(self) -> str | None:
        """See `Journal.shortage`."""
        return None

    def statistics(self) -> JournalStatistics:
        """See `Journal.statistics`."""
        return JournalStatistics(operations=self._operations, abandoned=self._abandoned)

    # ---- sessions

    async def create_session(self, session: NewSession) -> SessionRecord:
        """See `Journal.create_session`."""
        await self._enter()
        if session.session_id in self._shelf.sessions or any(self._shelf.streams_of(session.session_id)):
            raise ValueError(f"there is a session {session.session_id}, or there was")
        record = SessionRecord(
            session_id=session.session_id,
            tenant=session.tenant,
            epoch=1,
            last_sequence_id=0,
            next_stream_id=1,
            created_ms=self._now_ms(),
            released_ms=None,
        )
        self._shelf.sessions[session.session_id] = HeldSession(record, session.token_hash)
        return record

    async def claim_session(self, session_id: str, tenant: str, token_hash: bytes) -> ClaimedSession:
        """See `Journal.claim_session`."""
        await self._enter()
        session = self._shelf.sessions.get(session_id)
        known_hash = _NO_HASH if session is None else session.token_hash
        is_token = compare_digest(known_hash, token_hash)
        if session is None or session.record.tenant != tenant or not is_token:
            raise SessionNotFound
        session.record = evolve(session.record, released_ms=None)
        return self._take(session)

    async def adopt_session(self, session_id: str) -> ClaimedSession:
        """See `Journal.adopt_session`."""
        await self._enter()
        if (session := self._shelf.sessions.get(session_id)) is None:
            raise SessionNotFound
        return self._take(session)

    def _take(self, session: HeldSession) -> ClaimedSession:
        session.record = evolve(session.record, epoch=session.record.epoch + 1)
        streams = tuple(self._shelf.streams_of(session.record.session_id))
        return ClaimedSession(session=session.record, streams=streams)

    async def recover(self) -> tuple[ClaimedSession, ...]:
        """See `Journal.recover`."""
        await self._enter()
        live = {
            session_id
            for (session_id, _), stream in self._shelf.streams.items()
            if stream.record.state is StreamState.LIVE
        }
        return tuple(self._take(self._shelf.sessions[session_id]) for session_id in sorted(live))

    def _owned(self, session_id: str, epoch: int) -> HeldSession:
        if (session := self._shelf.sessions.get(session_id)) is None:
            raise SessionNotFound
        if session.record.epoch != epoch:
            raise Fenced(session_id, epoch, session.record.epoch)
        return session

    async def release_session(self, session_id: str, epoch: int) -> None:
        """See `Journal.release_session`."""
        await self._enter()
        session = self._owned(session_id, epoch)
        if session.record.released_ms is None:
            session.record = evolve(session.record, released_ms=self._now_ms())

    async def record_message(self, session_id: str, epoch: int, sequence_id: int) -> int:
        """See `Journal.record_message`."""
        await self._enter()
        return self._mark_processed(self._owned(session_id, epoch), sequence_id)

    def _mark_processed(self, session: HeldSession, sequence_id: int) -> int:
        last_id = session.record.last_sequence_id
        self._check_early(session, sequence_id)
        if sequence_id > last_id + 1:
            session.early.add(sequence_id)
        elif sequence_id == last_id + 1:
            last_id = sequence_id
            while last_id + 1 in session.early:
                last_id += 1
            session.early = {early_id for early_id in session.early if early_id > last_id}
            session.record = evolve(session.record, last_sequence_id=last_id)
        return last_id

    def _check_early(self, session: HeldSession, sequence_id: int) -> None:
        missing_id = session.record.last_sequence_id + 1
        is_early = sequence_id > missing_id and sequence_id not in session.early
        if is_early and len(session.early) >= self._limits.early_messages:
            raise TooManyEarlyMessages(missing_id, self._limits.early_messages)

    # ---- streams

    async def submit(
        self,
        session_id: str,
        epoch: int,
        stream: NewStream,
        committed: Callable[[Submission], None] | None = None,
    ) -> Submission:
        """See `Journal.submit`."""
        await self._enter()
        session = self._owned(session_id, epoch)
        known = self._shelf.requests.get((session.record.tenant, stream.idempotency_key))
        if known is not None and known.fingerprint != stream.fingerprint:
            raise IdempotencyMismatch
        owner = session_id if known is None else known.stream.record.session_id
        if owner != session_id and self._shelf.is_attached(owner):
            raise RequestInUse
        if known is None:
            size = stored_size(len(stream.request), len(pack_token_ids(stream.prompt_ids)))
            self._shelf.make_room(session.record.tenant, size)
        last_id = self._mark_processed(session, stream.sequence_id)
        found = self._start(session, stream, size) if known is None else known.stream
        if owner != session_id:
            self._shelf.move(found, session)
        submission = Submission(
            stream=found.record,
            replayed=known is not None,
            last_sequence_id=last_id,
            moved_from=None if owner == session_id else owner,
        )
        if committed is not None:
            committed(submission)
        return submission

    def _start(self, session: HeldSession, stream: NewStream, size: int) -> HeldStream:
        record = StreamRecord(
            session_id=session.record.session_id,
            stream_id=session.record.next_stream_id,
            tenant=session.record.tenant,
            state=StreamState.LIVE,
            first_available_id=1,
            next_frame_id=1,
            text_bytes=0,
            stored_bytes=size,
            created_ms=self._now_ms(),
            ended_ms=None,
            finish=None,
        )
        started = HeldStream(record, stream)
        self._shelf.streams[record.session_id, record.stream_id] = started
        self._shelf.requests[record.tenant, stream.idempotency_key] = HeldRequest(
            stream.fingerprint, started, record.created_ms
        )
        session.record = evolve(session.record, next_stream_id=record.stream_id + 1)
        return started

    def _find(self, session_id: str, stream_id: int) -> HeldStream:
        if (stream := self._shelf.streams.get((session_id, stream_id))) is not None:
            return stream
        session = self._shelf.sessions.get(session_id)
        if session is not None and 1 <= stream_id < session.record.next_stream_id:
            raise StreamExpired(stream_id, 1, 0)
        raise StreamNotFound(stream_id)

    def _live(self, session_id: str, epoch: int, stream_id: int) -> HeldStream:
        self._owned(session_id, epoch)
        stream = self._find(session_id, stream_id)
        if stream.record.state is not StreamState.LIVE:
            raise StreamEnded(stream_id)
        return stream

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
        check_frames(frames, self._limits)
        sizes = [stored_size(len(frame.payload), len(pack_token_ids(frame.token_ids))) for frame in frames]
        await self._enter()
        stream = self._live(session_id, epoch, stream_id)
        record = stream.record
        if (frames[0].id, frames[0].offset) != (record.next_frame_id, record.text_bytes):
            raise OutOfOrder(stream_id, record.next_frame_id, record.text_bytes)
        stream.frames += frames
        stream.record = evolve(
            record,
            next_frame_id=record.next_frame_id + len(frames),
            text_bytes=record.text_bytes + sum(frame.size for frame in frames),
            stored_bytes=record.stored_bytes + sum(sizes),
        )
        if finish is not None:
            stream.end(StreamState.FINISHED, finish, self._now_ms())
        return self._now_ms()

    async def append_all(self, appends: Sequence[Append]) -> Sequence[Exception | None]:
        """See `Journal.append_all`."""
        return await append_each(self.append, appends)

    async def abandon(self, session_id: str, epoch: int, stream_id: int) -> None:
        """See `Journal.abandon`."""
        await self._enter()
        self._live(session_id, epoch, stream_id).end(StreamState.ABANDONED, None, self._now_ms())

    async def note_attempt(self, session_id: str, epoch: int, stream_id: int) -> int:
        """See `Journal.note_attempt`."""
        await self._enter()
        return self._live(session_id, epoch, stream_id).note_attempt()

    # ---- reading

    async def read_frames(self, session_id: str, stream_id: int, after_id: int, limit: int) -> FramePage:
        """See `Journal.read_frames`."""
        await self._enter()
        stream = self._find(session_id, stream_id)
        record = stream.record
        stream.check_available(after_id + 1)
        if after_id > record.last_id:
            raise CursorAhead(stream_id, record.first_available_id, record.last_id)
        page: list[FrameRecord] = []
        size = 0
        start = after_id + 1 - record.first_available_id
        for frame in stream.frames[start : start + min(limit, self._limits.max_page_frames)]:
            size += len(frame.payload)
            if page and size > self._limits.page_bytes:
                break
            page.append(frame)
        return FramePage(record=record, frames=tuple(page))

    async def load_stream(self, session_id: str, stream_id: int) -> StoredStream:
        """See `Journal.load_stream`."""
        await self._enter()
        stream = self._find(session_id, stream_id)
        stream.check_available(1)
        return StoredStream(
            record=stream.record,
            request=stream.request.request,
            model_fingerprint=stream.request.model_fingerprint,
            prompt_ids=stream.request.prompt_ids,
            token_ids=tuple(token_id for frame in stream.frames for token_id in frame.token_ids),
            seed=stream.request.seed,
            attempts=stream.attempts,
        )

    async def find_stream(self, session_id: str, stream_id: int) -> StreamRecord:
        """See `Journal.find_stream`."""
        await self._enter()
        return self._find(session_id, stream_id).record

    async def knows_request(self, tenant: str, idempotency_key: bytes) -> bool:
        """See `Journal.knows_request`."""
        await self._enter()
        return (tenant, idempotency_key) in self._shelf.requests

    # ---- events

    async def take_events(self, session_id: str, epoch: int, batch: NewEventBatch) -> int:
        """See `Journal.take_events`."""
        await self._enter()
        session = self._owned(session_id, epoch)
        self._check_early(session, batch.sequence_id)
        self._events.take(session_id, session.record.tenant, batch, self._now_ms())
        return self._mark_processed(session, batch.sequence_id)

    async def read_events(self, after_key: int) -> tuple[EventBatch, ...]:
        """See `Journal.read_events`."""
        await self._enter()
        return self._events.read(after_key, self._limits.max_page_frames, self._limits.page_bytes)

    async def event_cursor(self, sink: str) -> int:
        """See `Journal.event_cursor`."""
        await self._enter()
        return self._events.cursors.get(sink, 0)

    async def commit_events(self, sink: str, key: int, *, forget_up_to: int) -> None:
        """See `Journal.commit_events`."""
        await self._enter()
        self._events.commit(sink, key, forget_up_to)

    # ---- forgetting

    async def sweep(self) -> SweepResult:
        """See `Journal.sweep`."""
        await self._enter()
        swept = self._shelf.sweep(self._now_ms())
        self._abandoned += len(swept.abandoned)
        return swept + SweepResult(event_marks=self._events.forget_sessions(self._shelf.sessions))

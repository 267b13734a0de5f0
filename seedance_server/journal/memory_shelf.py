"""What a journal in memory holds, and what it forgets: dictionaries, and the rules of retention.

It must not know tasks or the clock: whoever calls says what time it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import Factory, define, evolve, field

from seedance_server.journal.errors import StreamExpired, StreamTruncated, TenantQuotaExceeded
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.records import (
    FrameRecord,
    NewStream,
    SessionRecord,
    StreamRecord,
    StreamState,
    SweepResult,
)

__all__ = ["HeldRequest", "HeldSession", "HeldStream", "Shelf"]

_ENDED = (StreamState.FINISHED, StreamState.ABANDONED)


@define
class HeldSession:
    """A session, the token that claims it, and client messages processed before an earlier one."""

    record: SessionRecord
    token_hash: bytes
    early: set[int] = field(factory=set)


@define
class HeldStream:
    """A stream, the request that started it, its frames from the first available one on, its attempts."""

    record: StreamRecord
    request: NewStream
    frames: list[FrameRecord] = field(factory=list)
    attempts_at: tuple[int, int] = (0, 0)

    def end(self, state: StreamState, finish: str | None, now_ms: int) -> None:
        """Nothing follows from here on."""
        self.record = evolve(self.record, state=state, ended_ms=now_ms, finish=finish)

    @property
    def attempts(self) -> int:
        """See `StoredStream`."""
        next_id, attempts = self.attempts_at
        return attempts if next_id == self.record.next_frame_id else 0

    def note_attempt(self) -> int:
        """See `Journal.note_attempt`."""
        attempts = (self.attempts or 1) + 1
        self.attempts_at = self.record.next_frame_id, attempts
        return attempts

    def check_available(self, frame_id: int) -> None:
        """Raises StreamExpired or StreamTruncated for a frame that was deleted."""
        record = self.record
        if record.state is StreamState.EXPIRED:
            raise StreamExpired(record.stream_id, record.first_available_id, record.last_id)
        if frame_id < record.first_available_id:
            raise StreamTruncated(record.stream_id, record.first_available_id, record.last_id)


@define
class HeldRequest:
    """What an idempotency key stands for."""

    fingerprint: bytes
    stream: HeldStream
    created_ms: int


@define
class Shelf:
    """All that is held.

    Attributes:
        limits: Bounds.
        sessions: By their names.
        streams: By session and number.
        requests: By tenant and idempotency key.
    """

    limits: JournalLimits
    sessions: dict[str, HeldSession] = Factory(dict)
    streams: dict[tuple[str, int], HeldStream] = Factory(dict)
    requests: dict[tuple[str, bytes], HeldRequest] = Factory(dict)

    def is_attached(self, session_id: str) -> bool:
        """Whether a client has the session."""
        session = self.sessions.get(session_id)
        return session is not None and session.record.released_ms is None

    def move(self, stream: HeldStream, session: HeldSession) -> None:
        """Gives a stream to another session; who wrote it until now is fenced."""
        record = stream.record
        if (owner := self.sessions.get(record.session_id)) is not None:
            owner.record = evolve(owner.record, epoch=owner.record.epoch + 1)
        del self.streams[record.session_id, record.stream_id]
        number = session.record.next_stream_id
        stream.record = evolve(record, session_id=session.record.session_id, stream_id=number)
        self.streams[session.record.session_id, number] = stream
        session.record = evolve(session.record, next_stream_id=number + 1)

    def release_all(self, now_ms: int) -> None:
        """See `session_rows.release_all`."""
        for session in self.sessions.values():
            session.record = evolve(session.record, released_ms=now_ms)
        for stream in self.streams.values():
            if stream.record.ended_ms is not None:
                stream.record = evolve(stream.record, ended_ms=min(stream.record.ended_ms, now_ms))
        for request in self.requests.values():
            request.created_ms = min(request.created_ms, now_ms)

    def streams_of(self, session_id: str) -> Iterator[StreamRecord]:
        """The records of a session's streams, in the order in which they were submitted."""
        return (stream.record for (owner, _), stream in self.streams.items() if owner == session_id)

    def sweep(self, now_ms: int) -> SweepResult:
        """See `Journal.sweep`."""
        swept = self._abandon(now_ms) + self._expire(now_ms)
        for tenant in {stream.record.tenant for stream in self.streams.values()}:
            swept += self._force_out(tenant, self.limits.quota_of(tenant))
        return swept + self._drop_sessions(now_ms) + self._drop_requests(now_ms)

    def _is_overdue(self, session: HeldSession, now_ms: int) -> bool:
        released_ms = session.record.released_ms
        return released_ms is not None and released_ms <= _before(now_ms, self.limits.session_s)

    def _abandon(self, now_ms: int) -> SweepResult:
        abandoned = []
        for session_id, session in self.sessions.items():
            live = [
                record.stream_id for record in self.streams_of(session_id) if record.state is StreamState.LIVE
            ]
            if live and self._is_overdue(session, now_ms):
                session.record = evolve(session.record, epoch=session.record.epoch + 1)
                for stream_id in live:
                    stream = self.streams[session_id, stream_id]
                    stream.end(StreamState.ABANDONED, None, now_ms)
                    abandoned.append(stream.record)
        return SweepResult(abandoned=tuple(abandoned))

    def _ended(self) -> list[HeldStream]:
        """Ended streams that have frames still, in the order in which they ended."""
        ended = [stream for stream in self.streams.values() if stream.record.state in _ENDED]
        return sorted(ended, key=lambda stream: stream.record.ended_ms or 0)

    def _expire(self, now_ms: int) -> SweepResult:
        limit_ms = _before(now_ms, self.limits.retention_s)
        gone = [stream for stream in self._ended() if (stream.record.ended_ms or 0) <= limit_ms]
        return sum(map(self._forget_frames, gone), SweepResult())

    def _forget_frames(self, stream: HeldStream) -> SweepResult:
        count, stream.frames = len(stream.frames), []
        stream.record = evolve(
            stream.record,
            state=StreamState.EXPIRED,
            first_available_id=stream.record.next_frame_id,
            stored_bytes=0,
        )
        return SweepResult(frames=count, expired=1)

    def _used(self, tenant: str) -> int:
        records = (stream.record for stream in self.streams.values())
        return sum(record.stored_bytes for record in records if record.tenant == tenant)

    def _force_out(self, tenant: str, limit_bytes: int) -> SweepResult:
        swept = SweepResult()
        for stream in self._ended():
            if self._used(tenant) <= limit_bytes:
                break
            if stream.record.tenant == tenant:
                swept += self._forget_frames(stream)
        return swept

    def make_room(self, tenant: str, size: int) -> None:
        """See `retention.make_room_for_tenant`."""
        limit_bytes = self.limits.quota_of(tenant)
        live = sum(
            stream.record.stored_bytes
            for stream in self.streams.values()
            if stream.record.tenant == tenant and stream.record.state is StreamState.LIVE
        )
        if live + size > limit_bytes:
            raise TenantQuotaExceeded(tenant, live, limit_bytes)
        self._force_out(tenant, limit_bytes - size)

    def _drop_sessions(self, now_ms: int) -> SweepResult:
        gone = [
            session_id
            for session_id, session in self.sessions.items()
            if self._is_overdue(session, now_ms)
            and all(record.state is StreamState.EXPIRED for record in self.streams_of(session_id))
        ]
        for session_id in gone:
            del self.sessions[session_id]
        return SweepResult(sessions=len(gone))

    def _drop_requests(self, now_ms: int) -> SweepResult:
        limit_ms = _before(now_ms, self.limits.idempotency_s)
        gone = {
            key: request.stream.record
            for key, request in self.requests.items()
            if request.created_ms <= limit_ms and request.stream.record.state is StreamState.EXPIRED
        }
        for key, record in gone.items():
            del self.requests[key]
            del self.streams[record.session_id, record.stream_id]
        return SweepResult(requests=len(gone))


def _before(now_ms: int, age_s: float) -> int:
    return now_ms - round(age_s * 1e3)

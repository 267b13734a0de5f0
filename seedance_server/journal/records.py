"""What the journal keeps and hands out, as frozen values.

Payloads, requests and fingerprints are bytes here and mean nothing: whoever wrote them reads them. Times are
milliseconds since 1970 on the journal's own clock; offsets and sizes of text are UTF-8 bytes.
"""

from __future__ import annotations

import math
from enum import Enum

from attrs import field, frozen, validators

from seedance_server.distribution import Distribution

__all__ = [
    "COMMIT_BOUNDS_S",
    "ClaimedSession",
    "EventBatch",
    "FramePage",
    "FrameRecord",
    "JournalStatistics",
    "NewEventBatch",
    "NewSession",
    "NewStream",
    "SessionRecord",
    "Space",
    "StoredStream",
    "StreamRecord",
    "StreamState",
    "Submission",
    "SweepResult",
]

COMMIT_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From a fast disk to one that is as good as broken."""
_INT64_MAX = 2**63 - 1
_from_one = validators.and_(validators.instance_of(int), validators.ge(1), validators.le(_INT64_MAX))
_sha256 = validators.and_(validators.instance_of(bytes), validators.min_len(32), validators.max_len(32))


class StreamState(Enum):
    """Where a stream is in its life."""

    LIVE = "live"
    """It may get more frames; whoever starts on this journal takes it over."""
    FINISHED = "finished"
    """It has its terminal frame."""
    ABANDONED = "abandoned"
    """Its client didn't come back; there is no terminal frame."""
    EXPIRED = "expired"
    """Its frames were deleted; what is left is that it was."""


@frozen(kw_only=True)
class NewSession:
    """A session to be created.

    Attributes:
        session_id: Its name, never used before.
        tenant: Whose it is.
        token_hash: SHA-256 of the token that claims it.
    """

    session_id: str
    tenant: str
    token_hash: bytes = field(validator=_sha256, repr=False)


@frozen(kw_only=True)
class SessionRecord:
    """A session as it is kept.

    Attributes:
        session_id: Its name.
        tenant: Whose it is.
        epoch: Which owner it has, from 1; each claim adds one.
        last_sequence_id: The client's messages up to here were all processed.
        next_stream_id: The number of its next stream, from 1.
        created_ms: When it began.
        released_ms: Since when no client is attached, or None.
    """

    session_id: str
    tenant: str
    epoch: int
    last_sequence_id: int
    next_stream_id: int
    created_ms: int
    released_ms: int | None


@frozen(kw_only=True)
class NewStream:
    """A request, with all that is needed to take its generation over.

    Attributes:
        sequence_id: The client message that carries it, from 1.
        idempotency_key: Recognises it when it is sent again.
        fingerprint: Tells whether it is the same request.
        request: The request itself, opaque.
        model_fingerprint: What its tokens depend on beside the request: weights, tokenizer, dtype, engine.
        prompt_ids: The exact ids that the model is given.
        seed: Of its sampler, a signed 64-bit integer.
    """

    sequence_id: int = field(validator=_from_one)
    idempotency_key: bytes
    fingerprint: bytes
    request: bytes = field(repr=False)
    model_fingerprint: bytes
    prompt_ids: tuple[int, ...] = field(repr=False)
    seed: int


@frozen(kw_only=True)
class StreamRecord:
    """A stream's position, cheap to read.

    Attributes:
        session_id: Its session.
        stream_id: Its number there, from 1.
        tenant: Whose it is.
        state: Where it is in its life.
        first_available_id: The first frame kept; ``next_frame_id`` if none is.
        next_frame_id: The id that the next frame gets.
        text_bytes: Text so far; the offset of the next frame.
        stored_bytes: What it counts against the tenant's quota.
        created_ms: When it was submitted.
        ended_ms: When it was finished or abandoned, or None.
        finish: Why it finished, in the caller's word, or None.
    """

    session_id: str
    stream_id: int
    tenant: str
    state: StreamState
    first_available_id: int
    next_frame_id: int
    text_bytes: int
    stored_bytes: int
    created_ms: int
    ended_ms: int | None
    finish: str | None

    @property
    def last_id(self) -> int:
        """The last frame written, 0 if there is none."""
        return self.next_frame_id - 1


@frozen(kw_only=True)
class FrameRecord:
    """One frame of a stream.

    Attributes:
        id: From 1 in each stream, without a hole.
        kind: The caller's number for what it is.
        offset: Text before it.
        size: Text that it adds.
        payload: The frame's own bytes, opaque.
        token_ids: The ids that it stands for.
    """

    id: int
    kind: int
    offset: int
    size: int
    payload: bytes = field(repr=False)
    token_ids: tuple[int, ...] = field(default=(), repr=False)

    def __attrs_post_init__(self) -> None:
        # There is one of these for every token: a validator for each field would take ten times as long.
        most = _INT64_MAX
        if not (0 < self.id <= most and 0 <= self.kind <= most) or not (
            0 <= self.offset <= most and 0 <= self.size <= most
        ):
            raise ValueError(f"id from 1, kind, offset and size from 0, all below 2**63: {self}")


@frozen(kw_only=True)
class ClaimedSession:
    """A session and its streams at the moment of a claim; older owners can't change them any more."""

    session: SessionRecord
    streams: tuple[StreamRecord, ...]


@frozen(kw_only=True)
class Submission:
    """The stream of a request.

    Attributes:
        stream: Its record.
        replayed: Whether the request was there already: nothing is to be started.
        last_sequence_id: The session's, after this.
        moved_from: The session that had the stream until now, if it was another; its owner is fenced.
    """

    stream: StreamRecord
    replayed: bool
    last_sequence_id: int
    moved_from: str | None = None


@frozen(kw_only=True)
class StoredStream:
    """A stream with everything that it takes to continue it, or to continue from it.

    Attributes:
        attempts: Processes that stood at its next frame, as `Journal.note_attempt` counts them; 0 if none
            went on there with what another had left.
    """

    record: StreamRecord
    request: bytes = field(repr=False)
    model_fingerprint: bytes
    prompt_ids: tuple[int, ...] = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    seed: int
    attempts: int = 0


@frozen(kw_only=True)
class FramePage:
    """Consecutive frames, and the stream as it was at that same moment."""

    record: StreamRecord
    frames: tuple[FrameRecord, ...]


@frozen(kw_only=True)
class NewEventBatch:
    """What a client reports in one message.

    Attributes:
        sequence_id: That message's, from 1.
        batch_id: The client's own number of these events; the same whenever they are sent again.
        payload: The events, opaque.
    """

    sequence_id: int = field(validator=_from_one)
    batch_id: int = field(validator=_from_one)
    payload: bytes = field(repr=False)


@frozen(kw_only=True)
class EventBatch:
    """Reported events as they are kept.

    Attributes:
        key: Their place among all batches of the journal, rising in the order of commits.
        session_id: Whose client reported them.
        tenant: Its tenant.
        batch_id: The client's number of them.
        received_ms: When they were committed.
        payload: The events, opaque.
    """

    key: int
    session_id: str
    tenant: str
    batch_id: int
    received_ms: int
    payload: bytes = field(repr=False)


@frozen(kw_only=True)
class SweepResult:
    """What a sweep forgot.

    Attributes:
        frames: Frames deleted.
        expired: Streams that have no frame any more.
        abandoned: Streams that were ended since nobody came back; their sessions were fenced.
        sessions: Sessions deleted.
        requests: Idempotency keys deleted.
        event_marks: Marks deleted of reported events that all sinks have.
    """

    frames: int = 0
    expired: int = 0
    abandoned: tuple[StreamRecord, ...] = ()
    sessions: int = 0
    requests: int = 0
    event_marks: int = 0

    def __add__(self, other: SweepResult) -> SweepResult:
        return SweepResult(
            frames=self.frames + other.frames,
            expired=self.expired + other.expired,
            abandoned=self.abandoned + other.abandoned,
            sessions=self.sessions + other.sessions,
            requests=self.requests + other.requests,
            event_marks=self.event_marks + other.event_marks,
        )

    def __bool__(self) -> bool:
        return self != SweepResult()


@frozen(kw_only=True)
class Space:
    """What a journal takes on its disk; without a disk there is no end of room.

    Attributes:
        file_bytes: Its file and the log beside it.
        free_bytes: Room that is left.
    """

    file_bytes: int = 0
    free_bytes: float = math.inf


@frozen(kw_only=True)
class JournalStatistics:
    """Counts since the start, and what is now.

    Attributes:
        commits: Transactions on storage.
        operations: Operations in them, refused ones included.
        refusals: Operations refused.
        rows: Rows that operations counted for.
        largest_commit: Operations in the fullest one.
        commit_times: Seconds of a commit; live.
        queued_rows: Rows that wait for the writer now.
        queued_bytes: Their bytes.
        waiting: Callers that wait for room in the queue now.
        unsettled: Operations that wait for their commit now, or are in it.
        full: Times that a commit found the disk full.
        failures: Times that the storage failed.
        reopened: Times that it was opened again.
        abandoned: Streams that were ended since nobody came back.
        space: What it takes on its disk, and what is left there.
    """

    commits: int = 0
    operations: int = 0
    refusals: int = 0
    rows: int = 0
    largest_commit: int = 0
    commit_times: Distribution = field(factory=lambda: Distribution(COMMIT_BOUNDS_S))
    queued_rows: int = 0
    queued_bytes: int = 0
    waiting: int = 0
    unsettled: int = 0
    full: int = 0
    failures: int = 0
    reopened: int = 0
    abandoned: int = 0
    space: Space = Space()

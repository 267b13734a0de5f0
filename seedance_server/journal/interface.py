"""The journal: what must outlive a process so that every client gets every byte once.

Rules that every implementation keeps, in the storage and not by good manners of callers:

1. An operation returns only after what it wrote is durable, so what is sent after it can be replayed.
2. Writing to a session takes its current epoch. A claim adds one, and from then on the older owner writes
   nothing: `Fenced`.
3. Frames of a stream have ids 1, 2, 3 ... and offsets that add up. One (stream, id) has one content for ever.
4. Nothing follows the terminal frame.
5. One (tenant, idempotency key) starts one stream, however often and in whatever session it is sent. In
   another session it takes the stream along under a new number, unless a client is attached where it was; and
   whoever owned that session is fenced.
6. Deleting frames moves `first_available_id` in the same transaction: a reader sees frames or an error that
   says what is gone, never a hole.
7. Events of one (session, batch id) are kept once, and until every sink has taken them.
8. Unknown, another tenant's and wrong token are one answer.

Cancellation: an operation that was cancelled wrote nothing; one that is being written when the cancellation
comes is completed and returns. Any operation may raise `JournalFailed`, `JournalClosed` or
`JournalOverloaded`; those that write may raise `JournalFull`.

It must not know the wire, the engine, sockets or what any payload means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from seedance_server.journal.append import Append
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

__all__ = ["Journal"]


class Journal(Protocol):
    """Durable sessions, requests, streams and frames."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Opens the journal, reports that it is ready, and serves it until cancelled.

        Raises:
            JournalUnusable: It can't be opened.

        If cancelled, what is being written is completed, what waits raises `JournalClosed`.
        """

    async def create_session(self, session: NewSession) -> SessionRecord:
        """Creates a session with epoch 1 and a client attached.

        Raises:
            ValueError: There is one of that name, or there was and its streams are remembered.
        """

    async def claim_session(self, session_id: str, tenant: str, token_hash: bytes) -> ClaimedSession:
        """Makes the caller the session's owner, for the client that showed the token.

        Raises:
            SessionNotFound: There is no such session for this tenant and token.
        """

    async def adopt_session(self, session_id: str) -> ClaimedSession:
        """Makes the caller the session's owner without a client, as after `JournalFailed`.

        Raises:
            SessionNotFound: There is no such session.
        """

    async def recover(self) -> tuple[ClaimedSession, ...]:
        """Adopts every session with a live stream, for a process that starts on this journal."""

    async def release_session(self, session_id: str, epoch: int) -> None:
        """Notes that no client is attached any more; from here the session's time runs.

        Raises:
            SessionNotFound, Fenced: As in `append`.
        """

    async def record_message(self, session_id: str, epoch: int, sequence_id: int) -> int:
        """Notes that a client's message was processed; safe to repeat, in any order.

        Returns:
            The session's ``last_sequence_id``: every message up to it was processed.

        Raises:
            SessionNotFound, Fenced: As in `append`.
            TooManyEarlyMessages: Too many are ahead of a missing one.
        """

    async def submit(
        self,
        session_id: str,
        epoch: int,
        stream: NewStream,
        committed: Callable[[Submission], None] | None = None,
    ) -> Submission:
        """Starts a stream for a request and notes its message as processed; or finds the stream it has.

        Args:
            session_id: The session.
            epoch: The caller's.
            stream: The request.
            committed: Called with what is returned as soon as it is durable, in the caller's context: in the
                order of the streams' numbers, while callers that were waiting at once go on in any order.
                What it raises is raised here.

        Raises:
            SessionNotFound, Fenced, TooManyEarlyMessages: As in `record_message`.
            IdempotencyMismatch: The key belongs to another request.
            RequestInUse: It has its stream in another session, and a client is attached there.
            JournalFull, TenantQuotaExceeded: No room for new work.
        """

    async def append(
        self,
        session_id: str,
        epoch: int,
        stream_id: int,
        frames: Sequence[FrameRecord],
        *,
        finish: str | None = None,
    ) -> int:
        """Appends consecutive frames, all or none.

        Args:
            session_id: The session.
            epoch: The caller's.
            stream_id: The stream.
            frames: One at least.
            finish: Given with the terminal frame, the last of ``frames``: why the stream ended.

        Returns:
            When it was committed, in milliseconds.

        Raises:
            SessionNotFound: The session is gone.
            Fenced: It has another owner.
            StreamNotFound, StreamEnded, OutOfOrder: See there.
        """

    async def append_all(self, appends: Sequence[Append]) -> Sequence[Exception | None]:
        """Appends the frames of several streams together; one that is refused takes none of the others along.

        Returns:
            Of each, what `append` would have raised, or None: it is durable. All of them are settled.
        """

    async def abandon(self, session_id: str, epoch: int, stream_id: int) -> None:
        """Ends a live stream without a terminal frame; its frames are kept like a finished stream's.

        Raises:
            SessionNotFound, Fenced, StreamNotFound, StreamEnded: As in `append`.
        """

    async def note_attempt(self, session_id: str, epoch: int, stream_id: int) -> int:
        """Notes that a process is about to go on with a live stream that another one left; once a process.

        Returns:
            How many have stood at its next frame by now: whoever left it, and all that noted it since.

        Raises:
            SessionNotFound, Fenced, StreamNotFound, StreamEnded: As in `append`.
        """

    async def read_frames(self, session_id: str, stream_id: int, after_id: int, limit: int) -> FramePage:
        """The next frames after ``after_id``, ``limit`` at most; fewer if they are large, none at the tail.

        The page ends at what was committed when it was read: once its last frame is ``record.last_id``,
        whatever is newer comes from `append`.

        Raises:
            StreamNotFound: The session never had it, or there is no such session.
            StreamTruncated, StreamExpired: The frame after ``after_id`` was deleted.
            CursorAhead: ``after_id`` was never written.
        """

    async def load_stream(self, session_id: str, stream_id: int) -> StoredStream:
        """All that it takes to continue a stream, or a conversation from it: prompt, ids, seed, request.

        Raises:
            StreamNotFound, StreamTruncated, StreamExpired: As in `read_frames`.
        """

    async def find_stream(self, session_id: str, stream_id: int) -> StreamRecord:
        """A stream's position.

        Raises:
            StreamNotFound, StreamExpired: As in `read_frames`, but for an expired stream that is remembered.
        """

    async def knows_request(self, tenant: str, idempotency_key: bytes) -> bool:
        """Whether a tenant's request with this key has a stream: sent again, it starts nothing."""

    async def take_events(self, session_id: str, epoch: int, batch: NewEventBatch) -> int:
        """Keeps reported events, unless they are known, and notes their message as processed.

        Returns:
            As `record_message`.

        Raises:
            SessionNotFound, Fenced, TooManyEarlyMessages: As in `record_message`.
            EventsFull, JournalFull: No room; nothing was noted.
        """

    async def read_events(self, after_key: int) -> tuple[EventBatch, ...]:
        """The next batches of reported events, of any session, in order; none if there is none yet."""

    async def event_cursor(self, sink: str) -> int:
        """The key of the last batch that a sink has taken; 0 for a sink not known yet."""

    async def commit_events(self, sink: str, key: int, *, forget_up_to: int) -> None:
        """Notes that a sink has taken all batches up to ``key``.

        Args:
            sink: Its name.
            key: Of the last batch that it took.
            forget_up_to: Every sink has taken these; they are kept no more.
        """

    async def sweep(self) -> SweepResult:
        """Forgets what may be forgotten; `run` does so by itself, every ``sweep_interval_s``."""

    def trouble(self) -> str | None:
        """Why the journal can't serve just now, one line, or None."""

    def shortage(self) -> str | None:
        """Why it takes no new work though it serves all that there is, one line, or None: a full disk."""

    def statistics(self) -> JournalStatistics:
        """Counts so far."""

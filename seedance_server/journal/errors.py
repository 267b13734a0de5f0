"""What can go wrong with the journal, by who is at fault and what to do next.

    JournalError
    ├── JournalUnusable            this file can't be opened; one line for the command's user
    │   └── JournalInUse           another process has it
    ├── JournalClosed              not open: before `run`, or after it ended
    ├── JournalFailed              the storage failed; the session is fenced: adopt it again, read the tail
    ├── JournalOverloaded          the writer didn't keep up; nothing was written
    └── JournalRefusal             the storage is sound and says no; nothing was written
        ├── JournalFull            the disk is full, or nearly and this is new work
        ├── TenantQuotaExceeded    the tenant's live streams alone fill its share
        ├── EventsFull             the tenant's reported events wait for a sink and fill their share
        ├── SessionNotFound        unknown, another tenant's, or a wrong token: one answer
        ├── Fenced                 somebody claimed the session since
        ├── IdempotencyMismatch    the key was used for another request
        ├── RequestInUse           the key's stream is another session's, and a client is attached there
        ├── TooManyEarlyMessages   too many client messages ahead of a missing one
        ├── StreamNotFound         the session never had such a stream
        ├── StreamEnded            it ended; nothing can be appended
        ├── OutOfOrder             not the next frame: a bug of the caller
        ├── CursorAhead            the reader claims frames that were never written
        └── StreamTruncated        frames below `first_available_id` were deleted
            └── StreamExpired      all of them were

It must not know the wire's codes: sessions and peers translate.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "CursorAhead",
    "EventsFull",
    "Fenced",
    "IdempotencyMismatch",
    "JournalClosed",
    "JournalError",
    "JournalFailed",
    "JournalFull",
    "JournalInUse",
    "JournalOverloaded",
    "JournalRefusal",
    "JournalUnusable",
    "OutOfOrder",
    "RequestInUse",
    "SessionNotFound",
    "StreamEnded",
    "StreamExpired",
    "StreamNotFound",
    "StreamTruncated",
    "TenantQuotaExceeded",
    "TooManyEarlyMessages",
]


class JournalError(Exception):
    """Base of all that the journal raises on purpose."""


class JournalUnusable(JournalError):  # noqa: N818 - says what happened
    """The file can't serve as a journal.

    Attributes:
        path: The journal's file.
        reason: Why, and what to do, in one line.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the journal {path} can't be used: {reason}")
        self.path = path
        self.reason = reason


class JournalInUse(JournalUnusable):
    """Another process owns this journal.

    Attributes:
        pid: That process, or None if it doesn't say.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(path, f"it is in use by process {pid}" if pid else "it is in use by another process")
        self.pid = pid


class JournalClosed(JournalError):  # noqa: N818 - says what happened
    """The journal isn't open; nothing was written."""

    def __init__(self) -> None:
        super().__init__("the journal isn't open")


class JournalFailed(JournalError):  # noqa: N818 - says what happened
    """The storage failed under this operation, and its session was fenced.

    Adopt the session again (`Journal.adopt_session`) and go on from what is there: no memory of what was
    written before counts any more.

    Attributes:
        reason: What the storage said.
        unknown: Whether the operation may have been written all the same.
    """

    def __init__(self, reason: str, *, unknown: bool) -> None:
        outcome = "it may or may not have been written" if unknown else "nothing was written"
        super().__init__(f"the journal failed ({reason}); {outcome}")
        self.reason = reason
        self.unknown = unknown


class JournalOverloaded(JournalError):  # noqa: N818 - says what happened
    """No room in the writer's queue, or the file locked by another process, too long; nothing was written."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the journal couldn't write for {waited_s:g} s")
        self.waited_s = waited_s


class JournalRefusal(JournalError):  # noqa: N818 - says what happened
    """The journal is sound and refuses this operation alone; nothing was written."""


class JournalFull(JournalRefusal):
    """No room on the disk.

    Attributes:
        new_work: True if only new work is refused; False if even the frames of live streams don't fit.
    """

    def __init__(self, *, new_work: bool) -> None:
        super().__init__("the journal's disk is nearly full" if new_work else "the journal's disk is full")
        self.new_work = new_work


class TenantQuotaExceeded(JournalRefusal):
    """The tenant's share of the journal is full of streams that can't be deleted yet.

    Attributes:
        tenant: Whose.
        used_bytes: What its streams take after all finished ones were counted out.
        limit_bytes: What they may take.
    """

    def __init__(self, tenant: str, used_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"live streams of tenant {tenant} fill its {limit_bytes} bytes of the journal")
        self.tenant = tenant
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes


class EventsFull(JournalRefusal):
    """No room for reported events until a sink has taken some.

    Attributes:
        tenant: Whose.
        waiting_bytes: What waits.
        limit_bytes: What may.
    """

    def __init__(self, tenant: str, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"events of tenant {tenant} that no sink has taken fill their {limit_bytes} bytes")
        self.tenant = tenant
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes


class SessionNotFound(JournalRefusal):
    """There is no such session for this caller; which of the reasons it is stays untold on purpose."""

    def __init__(self) -> None:
        super().__init__("no such session")


class Fenced(JournalRefusal):
    """The session has a newer owner.

    Attributes:
        session_id: The session.
        epoch: The epoch of the caller.
        current_epoch: The epoch of the owner.
    """

    def __init__(self, session_id: str, epoch: int, current_epoch: int) -> None:
        super().__init__(f"epoch {epoch} of session {session_id} was followed by {current_epoch}")
        self.session_id = session_id
        self.epoch = epoch
        self.current_epoch = current_epoch


class IdempotencyMismatch(JournalRefusal):
    """The tenant used this idempotency key for another request."""

    def __init__(self) -> None:
        super().__init__("this idempotency key belongs to another request")


class RequestInUse(JournalRefusal):
    """The request has its stream in another session, which a client holds just now."""

    def __init__(self) -> None:
        super().__init__("this request was made in another session, which is connected")


class TooManyEarlyMessages(JournalRefusal):
    """Too many client messages were processed while an earlier one is missing.

    Attributes:
        missing_id: The sequence id that is waited for.
        limit: How many may be ahead.
    """

    def __init__(self, missing_id: int, limit: int) -> None:
        super().__init__(f"client message {missing_id} is missing, and {limit} after it were processed")
        self.missing_id = missing_id
        self.limit = limit


class StreamNotFound(JournalRefusal):
    """The session never had a stream of this number."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"there is no stream {stream_id}")
        self.stream_id = stream_id


class StreamEnded(JournalRefusal):
    """The stream has its last frame, or was abandoned."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"stream {stream_id} has ended")
        self.stream_id = stream_id


class OutOfOrder(JournalRefusal):
    """The frames don't follow what the journal holds.

    Attributes:
        expected_id: The frame id that comes next.
        expected_offset: The text offset that comes next.
    """

    def __init__(self, stream_id: int, expected_id: int, expected_offset: int) -> None:
        super().__init__(f"stream {stream_id} goes on at frame {expected_id}, offset {expected_offset}")
        self.stream_id = stream_id
        self.expected_id = expected_id
        self.expected_offset = expected_offset


class CursorAhead(JournalRefusal):
    """The reader has processed more than was ever written.

    Attributes:
        first_available_id: The first frame that is kept.
        last_id: The last frame written.
    """

    def __init__(self, stream_id: int, first_available_id: int, last_id: int) -> None:
        super().__init__(f"stream {stream_id} ends at frame {last_id} so far")
        self.stream_id = stream_id
        self.first_available_id = first_available_id
        self.last_id = last_id


class StreamTruncated(JournalRefusal):
    """Frames that the reader needs were deleted.

    Attributes:
        first_available_id: The first frame that is kept, ``last_id + 1`` if none is.
        last_id: The last frame written.
    """

    def __init__(self, stream_id: int, first_available_id: int, last_id: int) -> None:
        super().__init__(f"stream {stream_id} is kept from frame {first_available_id} on")
        self.stream_id = stream_id
        self.first_available_id = first_available_id
        self.last_id = last_id


class StreamExpired(StreamTruncated):
    """Every frame of the stream was deleted, or even the memory of it: then the ids are 1 and 0."""

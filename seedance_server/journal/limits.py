"""Every bound of the journal, with its reason.

A limit that is not about this machine but about what was promised (how long a stream can be resumed) stands
under *promises*; the others may be moved by whoever measures.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

__all__ = ["JournalLimits"]


@frozen(kw_only=True)
class JournalLimits:
    """Bounds of one journal; times in seconds, sizes in bytes.

    Attributes:
        commit_interval_s: How long the first operation of a commit waits for company. Not at all: what one
            step of the engine wakes arrives together anyway, and what comes later gathers while the disk is
            busy. `bench/journal.py` shows commits as full without the wait, at half the latency.
        commit_rows: Rows in one commit; reached earlier, it isn't waited longer. At 32 rows a commit takes
            about a millisecond, of which the disk's flush is most: more rows make it better, up to where
            writing them costs more than the flush.
        queued_rows: Rows that may wait for the writer, some 30 commits; then callers wait.
        queued_bytes: The same in bytes of frames and requests.
        queue_timeout_s: How long a caller waits for room: a disk that is that slow is out of order.
        busy_timeout_s: How long SQLite waits for a lock that another process holds (a backup, a shell).
        max_frame_bytes: Payload of one frame: no frame on the wire is larger.
        max_page_frames: Frames in one page of a replay.
        page_bytes: Payload in one page of a replay; a page holds one frame at least.
        readers: Read-only connections: pages are read in parallel, and a slow disk blocks no more threads.
        early_messages: Client messages of one session processed before an earlier one: a session has at most
            64 requests at once.
        retention_s: Promise: how long a finished stream can be resumed.
        idempotency_s: Promise: how long a repeated request is recognised.
        session_s: Promise: how long a session without a client can be claimed, longer while it has a stream.
        tenant_bytes: What the streams of one tenant may take.
        bytes_of_tenants: The same of tenants that have their own; looked at again each time, on any thread.
        event_bytes: Reported events of one tenant that wait for a sink: one that stands still may be mended
            without a loss, and no tenant fills the disk meanwhile.
        event_marks: Batches of reported events that are known again in each session; the protocol lets a
            client have so many unanswered.
        sweep_interval_s: Between two looks for what may be forgotten.
        sweep_rows: Rows deleted in one transaction, so that live streams wait for a few milliseconds at most.
        soft_free_bytes: Free space on the disk under which new work is refused: live streams need the rest.
        free_check_s: How long a look at the free space is good for.
        ballast_bytes: A file given up when the disk is full, since deleting needs room too: for its part of
            the log, and for moving the log into the file, 4 MB each at most.
        full_retries: Attempts to commit on a full disk, each after making room.
        full_retry_s: Pause before the first of them, doubled for each next: others may free space too.
        reopen_attempts: Attempts to open the file again after it failed, before waiting callers are told.
        reopen_pause_s: Pause before the second of them, doubled for each next.
        reopen_interval_s: Between attempts after that; the journal recovers without a restart.
        checkpoint_bytes: SQLite's log is moved into the file between two commits once it is so long: SQLite's
            own default. Less makes more commits wait, more makes them wait longer.
        check_bytes: Files up to this size are checked whole when they are opened: about a second's work.
        close_timeout_s: For the last commit and for closing the file.
    """

    commit_interval_s: float = 0.0
    commit_rows: int = 256
    queued_rows: int = 8_192
    queued_bytes: int = 33_554_432
    queue_timeout_s: float = 10.0
    busy_timeout_s: float = 5.0
    max_frame_bytes: int = 1_048_576
    max_page_frames: int = 256
    page_bytes: int = 262_144
    readers: int = 4
    early_messages: int = 64
    retention_s: float = 3_600.0
    idempotency_s: float = 86_400.0
    session_s: float = 600.0
    tenant_bytes: int = 1_073_741_824
    bytes_of_tenants: Mapping[str, int] = field(factory=dict)
    event_bytes: int = 67_108_864
    event_marks: int = 1_024
    sweep_interval_s: float = 10.0
    sweep_rows: int = 512
    soft_free_bytes: int = 67_108_864
    free_check_s: float = 1.0
    ballast_bytes: int = 8_388_608
    full_retries: int = 3
    full_retry_s: float = 0.05
    reopen_attempts: int = 3
    reopen_pause_s: float = 0.05
    reopen_interval_s: float = 5.0
    checkpoint_bytes: int = 4_096_000
    check_bytes: int = 268_435_456
    close_timeout_s: float = 5.0

    def quota_of(self, tenant: str) -> int:
        """Bytes that the streams of this tenant may take."""
        return self.bytes_of_tenants.get(tenant, self.tenant_bytes)

"""What a journal has done so far, counted where it commits; `JournalStatistics` in the making.

It must not know storage.
"""

from __future__ import annotations

import attrs

from seedance_server.distribution import Distribution
from seedance_server.journal.commit_queue import CommitQueue
from seedance_server.journal.errors import JournalRefusal
from seedance_server.journal.operation import Batch, Outcome
from seedance_server.journal.records import COMMIT_BOUNDS_S, JournalStatistics, Space

__all__ = ["Figures"]


@attrs.define
class Figures:
    """Counts since the start; each stands under the name that it has in `JournalStatistics`."""

    commits: int = 0
    operations: int = 0
    refusals: int = 0
    rows: int = 0
    largest_commit: int = 0
    commit_times: Distribution = attrs.field(factory=lambda: Distribution(COMMIT_BOUNDS_S))
    full: int = 0
    failures: int = 0
    reopened: int = 0
    abandoned: int = 0

    def note_commit(self, batch: Batch, outcomes: list[Outcome], took_s: float) -> None:
        """Counts a commit, one that found no room included."""
        self.commits += 1
        self.operations += len(batch)
        self.rows += sum(operation.rows for operation in batch)
        self.refusals += sum(isinstance(outcome.error, JournalRefusal) for outcome in outcomes)
        self.largest_commit = max(self.largest_commit, len(batch))
        self.commit_times.add(took_s)

    def statistics(self, queue: CommitQueue, space: Space) -> JournalStatistics:
        """All figures as of now."""
        return JournalStatistics(
            queued_rows=queue.rows,
            queued_bytes=queue.size,
            waiting=queue.waiting,
            unsettled=queue.unsettled,
            space=space,
            **{field.name: getattr(self, field.name) for field in attrs.fields(Figures)},
        )

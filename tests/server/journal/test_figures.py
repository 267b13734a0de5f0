"""Tests of `seedance_server.journal.figures`."""

from seedance_server.journal.commit_queue import CommitQueue
from seedance_server.journal.errors import SessionNotFound
from seedance_server.journal.figures import Figures
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.operation import Operation, Outcome
from seedance_server.journal.records import Space


def test_figures_count_what_a_commit_held() -> None:
    """Operations and rows, those refused, the fullest commit, and how long each took."""
    figures = Figures()
    batch = [Operation(lambda _: None, rows=3), Operation(lambda _: None, rows=2)]
    figures.note_commit(batch, [Outcome(1), Outcome(error=SessionNotFound())], 0.004)
    figures.note_commit(batch[:1], [Outcome(1)], 0.3)
    figures.abandoned += 1
    statistics = figures.statistics(CommitQueue(JournalLimits()), Space(file_bytes=7, free_bytes=8))
    assert (statistics.commits, statistics.operations, statistics.rows) == (2, 3, 8)
    assert (statistics.refusals, statistics.largest_commit, statistics.abandoned) == (1, 2, 1)
    assert statistics.commit_times.buckets[-1][1] == 2
    assert statistics.commit_times.sum == 0.004 + 0.3
    assert (statistics.space.file_bytes, statistics.unsettled) == (7, 0)

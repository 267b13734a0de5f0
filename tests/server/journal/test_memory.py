"""The journal in memory keeps every rule of a journal."""

from __future__ import annotations

import pytest

from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from tests.server.journal.conformance import JournalConformance
from tests.server.journal.event_conformance import EventConformance
from tests.server.journal.frame_conformance import FrameConformance
from tests.server.journal.journal_made import MakeJournal, WallClock
from tests.server.journal.move_conformance import MoveConformance
from tests.server.journal.retention_conformance import RetentionConformance


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture
def make_journal(wall_clock: WallClock) -> MakeJournal:
    made: list[MemoryJournal] = []

    def make(limits: JournalLimits) -> MemoryJournal:
        if not made:
            made.append(MemoryJournal(limits, wall_clock=wall_clock))
        return made[0]

    return make


class TestMemoryJournal(JournalConformance):
    """The rules of sessions and requests."""


class TestMemoryJournalFrames(FrameConformance):
    """The rules of writing frames, and of reading them again."""


class TestMemoryJournalMoves(MoveConformance):
    """The rules of a stream that changes its session."""


class TestMemoryJournalRetention(RetentionConformance):
    """The rules of forgetting."""


class TestMemoryJournalEvents(EventConformance):
    """The rules of reported events."""

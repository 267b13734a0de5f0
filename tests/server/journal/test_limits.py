"""The bounds of a journal fit each other."""

from __future__ import annotations

import attrs

from seedance_server.journal.limits import JournalLimits


def test_limits_fit_each_other():
    """A commit fits the queue, a frame a commit, and what is promised lasts as long as what it needs."""
    limits = JournalLimits()
    assert limits.commit_rows <= limits.queued_rows
    assert limits.max_frame_bytes <= limits.queued_bytes
    assert limits.session_s < limits.retention_s < limits.idempotency_s
    # Moving the log and deleting a portion each need as much as the log may hold.
    assert limits.ballast_bytes >= 2 * limits.checkpoint_bytes


def test_every_limit_has_its_reason():
    """A number without one can't be judged by whoever wants to change it."""
    described = JournalLimits.__doc__ or ""
    for field in attrs.fields(JournalLimits):
        assert f"{field.name}: " in described

"""Records refuse what no journal could keep."""

from __future__ import annotations

import pytest
from attrs import evolve

from seedance_server.journal.records import FrameRecord, NewSession, SweepResult
from tests.server.journal.journal_made import new_session, new_stream


@pytest.mark.parametrize("token_hash", [b"", bytes(31), bytes(33)])
def test_token_is_kept_as_its_hash_only(token_hash: bytes):
    """A token itself, which has another length, can't get in by mistake."""
    with pytest.raises(ValueError, match="token_hash"):
        NewSession(session_id="s", tenant="t", token_hash=token_hash)


def test_secrets_and_prompts_are_not_shown():
    """What is printed or logged holds neither a token's hash nor a prompt."""
    assert "token_hash" not in repr(new_session())
    assert "70000" not in repr(new_stream())
    assert "b'request'" not in repr(new_stream())


@pytest.mark.parametrize("change", [{"id": 0}, {"id": 2**63}, {"offset": -1}, {"size": -1}, {"kind": -1}])
def test_frame_out_of_range_is_refused(change: dict[str, int]):
    """Ids count from 1, offsets and sizes from 0, and all fit the storage."""
    frame = FrameRecord(id=1, kind=1, offset=0, size=0, payload=b"")
    with pytest.raises(ValueError, match=next(iter(change))):
        evolve(frame, **change)


def test_sweeps_add_up():
    """A sweep in portions reports as one."""
    assert not SweepResult()
    assert SweepResult(frames=1) + SweepResult(frames=2, requests=1) == SweepResult(frames=3, requests=1)

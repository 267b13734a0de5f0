"""Tests of `seedance_server.frame_store`."""

import pytest
import trio

from seedance_server.errors import SessionLost
from seedance_server.frame_store import append_patiently
from seedance_server.journal.errors import JournalFull, JournalOverloaded


class Store:
    """Fails for a while."""

    def __init__(self, *errors):
        self.errors, self.written = list(errors), []

    async def append(self, stream_id, frames, finish):
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((stream_id, frames, finish))


async def test_store_that_is_full_or_slow_is_tried_again(autojump_clock) -> None:
    """With growing pauses; what is written in the end is written once."""
    store = Store(JournalFull(new_work=False), JournalOverloaded(1.0), JournalFull(new_work=False))
    began_s = trio.current_time()
    await append_patiently(store, 3, ["frame"], "stop", patience_s=10)
    assert store.written == [(3, ["frame"], "stop")]
    assert trio.current_time() - began_s == pytest.approx(0.05 + 0.1 + 0.2)


async def test_store_that_stays_full_is_given_up_in_time(autojump_clock) -> None:
    """The stream then says so; it doesn't wait for ever."""
    store = Store(*[JournalFull(new_work=False)] * 100)
    began_s = trio.current_time()
    with pytest.raises(JournalFull):
        await append_patiently(store, 3, [], None, patience_s=10)
    assert 10 <= trio.current_time() - began_s <= 11
    assert not store.written


async def test_store_of_somebody_else_is_not_tried_again(autojump_clock) -> None:
    """Who lost the session touches nothing more."""
    store = Store(SessionLost())
    with pytest.raises(SessionLost):
        await append_patiently(store, 3, [], None, patience_s=10)
    assert not store.written

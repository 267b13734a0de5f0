"""Tests of `seedance_server.http.holds`: one hold a session, however many use it."""

import pytest
import trio

from seedance_server.errors import SessionLost
from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.holds import AnswerGone, Hold, Holds
from seedance_server.journal.errors import SessionNotFound
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import serve_in_memory
from seedance_wire.errors import CloseCode

ANSWER = AnswerId.of(Kind.CHAT, "local", "key")


async def lose_soon(hold: Hold) -> None:
    await trio.sleep(1)
    hold.session.lose("somebody else has it", CloseCode.FENCED)


async def test_hold_is_shared_and_let_go_with_the_last(autojump_clock) -> None:
    """A second reader doesn't fence the first; the session leaves memory when nobody has it."""
    async with serve_in_memory() as server:
        holds = Holds(server.registry)
        async with holds.held("local", ANSWER, is_new=True) as first:
            async with holds.held("local", ANSWER, is_new=False) as second:
                assert second is first
            assert server.registry.statistics().sessions == 1
        assert server.registry.statistics().sessions == 0
        async with holds.held("local", ANSWER, is_new=False) as again:
            assert again.session.epoch == 2


async def test_hold_of_what_never_was_is_refused(autojump_clock) -> None:
    """Another tenant's is the same as none."""
    async with serve_in_memory() as server:
        holds = Holds(server.registry)
        async with holds.held("local", ANSWER, is_new=True):
            pass
        for tenant, answer in (("other", ANSWER), ("local", AnswerId.of(Kind.CHAT, "local", "no"))):
            with pytest.raises(SessionNotFound):
                async with holds.held(tenant, answer, is_new=False):
                    pass


async def test_hold_lost_stops_whoever_uses_it(autojump_clock) -> None:
    """And who comes later claims it anew."""
    async with serve_in_memory() as server:
        holds = Holds(server.registry)
        async with holds.held("local", ANSWER, is_new=True) as hold:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose_soon, hold)
                with pytest.raises(SessionLost), hold.in_use():
                    await trio.sleep_forever()
            with pytest.raises(SessionLost):
                _ = hold.session
            async with holds.held("local", ANSWER, is_new=False) as again:
                assert again is hold
                assert again.session.epoch == 2


async def test_hold_is_never_begun_twice(autojump_clock) -> None:
    """What is remembered of an answer that is gone stands in the way of another one under its name."""
    journal = MemoryJournal(JournalLimits(retention_s=1, session_s=1, sweep_interval_s=1))
    async with serve_in_memory(journal=journal) as server:
        from tests.server.http.probe import Client

        body = {"messages": [{"role": "user", "content": "Hi"}]}
        await Client(server.connect()).ask("POST", "/v1/chat/completions", body, Idempotency_Key="key")
        await trio.sleep(30)
        with pytest.raises(AnswerGone):
            async with Holds(server.registry).held("local", ANSWER, is_new=True):
                pass

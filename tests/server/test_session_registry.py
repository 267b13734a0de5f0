"""Tests of `seedance_server.session_registry`."""

import hashlib

import pytest
import trio

from seedance_server.errors import SessionLost, Superseded
from seedance_server.journal.errors import JournalFailed
from seedance_server.session_registry import RegistryStatistics, SessionRegistry
from tests.server.failing_journal import FailingJournal
from tests.server.test_session import StubStream, request


class Claimant:
    """A connection as the registry knows it."""

    def __init__(self):
        self.session = self.epoch = self.ended = None

    def open(self, session, epoch):
        self.session, self.epoch = session, epoch

    def end(self, code, reason):
        self.ended = int(code)


@pytest.fixture
async def journal(nursery):
    journal = FailingJournal()
    await nursery.start(journal.run)
    return journal


async def start(nursery, journal) -> SessionRegistry:
    names = iter(range(1, 1000))
    registry = SessionRegistry(
        journal,
        new_session_id=lambda: f"s{next(names)}-{id(registry)}",
        entropy=lambda count: bytes([7]) * count,
    )
    await nursery.start(registry.run)
    return registry


async def test_registry_creates_a_session_with_a_token_of_its_own(nursery, journal) -> None:
    """32 random bytes; the journal holds their hash only."""
    registry = await start(nursery, journal)
    claimant = Claimant()
    entrance = await registry.enter("local", None, None, claimant)
    assert (entrance.epoch, entrance.is_present, entrance.last_stream_id) == (1, False, 0)
    assert entrance.token == b"\7" * 32
    held = journal._shelf.sessions[entrance.session.id]
    assert held.token_hash == hashlib.sha256(entrance.token).digest()
    assert (claimant.session, claimant.epoch) == (entrance.session, 1)


async def test_registry_gives_a_session_to_whoever_shows_its_token_newest_first(nursery, journal) -> None:
    """The same object while it is in memory; the connection before is closed."""
    registry = await start(nursery, journal)
    old, new = Claimant(), Claimant()
    first = await registry.enter("local", None, None, old)
    again = await registry.enter("local", first.session.id, first.token, new)
    assert (again.session, again.epoch, again.is_present) == (first.session, 2, True)
    assert (old.ended, new.ended) == (4409, None)
    first.session.detach(old)
    first.session.detach(new)
    assert registry.statistics() == RegistryStatistics(0, 0, 0, 0)
    later = await registry.enter("local", first.session.id, first.token, Claimant())
    assert later.session is not first.session
    assert later.epoch == 3


@pytest.mark.parametrize(
    ("session_id", "token"), [("nobody", b"\7" * 32), (None, bytes(32)), (None, b"\7" * 31), (None, b"")]
)
async def test_registry_answers_every_wrong_claim_with_a_new_session(
    nursery, journal, session_id, token
) -> None:
    """Unknown or a wrong token: no difference, and the owner isn't disturbed."""
    registry = await start(nursery, journal)
    owner = Claimant()
    entrance = await registry.enter("local", None, None, owner)
    other = await registry.enter("local", session_id or entrance.session.id, token, Claimant())
    assert not other.is_present
    assert other.session is not entrance.session
    assert (owner.ended, entrance.session.epoch) == (None, 1)


async def test_registry_lets_claims_at_once_end_with_one_owner(nursery, journal) -> None:
    """Twenty connections claim in one step: the highest epoch has it, all others are closed or refused."""
    registry = await start(nursery, journal)
    first = await registry.enter("local", None, None, Claimant())
    claimants = [Claimant() for _ in range(20)]
    superseded = []

    async def claim(claimant) -> None:
        try:
            await registry.enter("local", first.session.id, first.token, claimant)
        except Superseded:
            superseded.append(claimant)

    async with trio.open_nursery() as claims:
        for claimant in claimants:
            claims.start_soon(claim, claimant)
    holding = [claimant for claimant in claimants if claimant.session and claimant.ended is None]
    assert [claimant.epoch for claimant in holding] == [21]
    assert all(
        claimant in superseded or claimant.ended == 4409 for claimant in claimants if claimant not in holding
    )
    assert first.session.epoch == 21
    assert not first.session.is_lost


async def test_registry_drops_what_somebody_else_had_in_between(nursery, journal) -> None:
    """An epoch that isn't ours: what is in memory may not be what is written."""
    registry = await start(nursery, journal)
    owner = Claimant()
    first = await registry.enter("local", None, None, owner)
    stream = StubStream()
    first.session.start(stream, lambda: None)
    await journal.adopt_session(first.session.id)
    later = await registry.enter("local", first.session.id, first.token, Claimant())
    assert first.session.is_lost
    assert stream.stopped.is_set()
    assert owner.ended == 4412
    assert later.session is not first.session


async def test_registry_recovers_sessions_with_live_streams_by_fencing_who_had_them(nursery, journal) -> None:
    """A process that starts on a journal owns what is unfinished in it; nothing runs until a client comes."""
    registry = await start(nursery, journal)
    first = await registry.enter("local", None, None, Claimant())
    await first.session.submit(request())
    other = await start(nursery, journal)
    assert other.statistics().sessions == 0
    with pytest.raises(SessionLost):
        await first.session.record(2)
    assert (await other.enter("local", first.session.id, first.token, Claimant())).last_stream_id == 1


async def test_registry_passes_a_journals_failure_on(nursery, journal) -> None:
    """There is no session then, and none is left in memory."""
    registry = await start(nursery, journal)
    journal.faults["create_session"] = lambda *_: JournalFailed("EIO", unknown=False)
    with pytest.raises(JournalFailed):
        await registry.enter("local", None, None, Claimant())
    assert registry.statistics().sessions == 0

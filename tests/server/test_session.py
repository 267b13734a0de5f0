"""Tests of `seedance_server.session`."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seedance_server.errors import SessionLost, Superseded
from seedance_server.frame_courier import FrameCourier
from seedance_server.journal.errors import (
    Fenced,
    JournalFailed,
    JournalFull,
    OutOfOrder,
    SessionNotFound,
    StreamEnded,
    TooManyEarlyMessages,
)
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import FrameRecord, NewSession, NewStream
from seedance_server.session import Session
from tests.server.failing_journal import FailingJournal

FRAME = FrameRecord(id=1, kind=1, offset=0, size=1, payload=b"x")


class Connection:
    """Who holds a session."""

    def __init__(self):
        self.ended = None

    def end(self, code, reason):
        self.ended = int(code)


class StubStream:
    """A stream that runs until it is stopped."""

    def __init__(self, stream_id=1, error=None):
        self.id, self.error, self.stopped = stream_id, error, trio.Event()

    def stop(self):
        self.stopped.set()

    async def run(self):
        await self.stopped.wait()
        if self.error is not None:
            raise self.error


class Bench:
    """A session on a journal, with what it told its surroundings."""

    def __init__(self, journal, session, unused):
        self.journal, self.session, self.unused = journal, session, unused
        self.lost = []
        self.settle = trio.Event()
        self.settle.set()

    async def settled(self, session_id):
        await self.settle.wait()


@pytest.fixture
async def bench(nursery):
    journal = FailingJournal()
    await nursery.start(journal.run)
    record = await journal.create_session(NewSession(session_id="s", tenant="t", token_hash=bytes(32)))
    unused = []
    bench = Bench(journal, None, unused)
    bench.session = Session(
        record,
        journal=journal,
        courier=FrameCourier(journal),
        nursery=nursery,
        claims_settled=bench.settled,
        lose_other=bench.lost.append,
        on_unused=unused.append,
    )
    return bench


@pytest.mark.parametrize(
    ("error", "is_lost"), [(JournalFailed("disk", unknown=True), True), (JournalFull(new_work=False), False)]
)
async def test_session_learns_from_frames_that_were_appended_in_passing(
    bench, nursery, error, is_lost
) -> None:
    """A journal that failed loses it at once, as in every write; what is only refused is the stream's."""
    nursery.start_soon(bench.session._courier.run)
    await bench.session.submit(request())
    await wait_all_tasks_blocked()
    told = []
    bench.session.append_soon(1, [FRAME], told.append)
    await wait_all_tasks_blocked()
    assert told == [True]
    bench.journal.faults["append"] = lambda *_, **__: error
    bench.session.append_soon(1, [FRAME], told.append)
    await wait_all_tasks_blocked()
    assert (told, bench.session.is_lost) == ([True, False], is_lost)
    bench.session.lose("in any case")
    bench.session.append_soon(1, [FRAME], told.append)
    assert told == [True, False, False]


def request(sequence_id: int = 1) -> NewStream:
    return NewStream(
        sequence_id=sequence_id,
        idempotency_key=bytes([sequence_id]) * 16,
        fingerprint=b"",
        request=b"",
        model_fingerprint=b"",
        prompt_ids=(1,),
        seed=1,
    )


async def test_session_writes_again_when_its_own_claim_came_between(autojump_clock, bench, nursery) -> None:
    """The write that met the claim waits for the new epoch to be in place; it is written once."""
    await bench.session.submit(request())
    claimed = await bench.journal.claim_session("s", "t", bytes(32))
    bench.settle = trio.Event()
    done = trio.Event()

    async def append() -> None:
        await bench.session.append(1, [FRAME], None)
        done.set()

    nursery.start_soon(append)
    await trio.sleep(1)
    assert not done.is_set()
    bench.session.attach(Connection(), claimed.session)
    bench.settle.set()
    await done.wait()
    assert (await bench.journal.find_stream("s", 1)).last_id == 1
    assert bench.session.epoch == 2


@pytest.mark.parametrize(
    "error",
    [
        JournalFailed("EIO", unknown=True),
        SessionNotFound(),
        StreamEnded(1),
        OutOfOrder(1, 9, 9),
        Fenced("s", 1, 2),
    ],
)
async def test_session_that_cannot_know_what_is_written_is_lost(bench, error) -> None:
    """Everything stops, the connection is told to come back, nothing is written any more."""
    session, holder, stream = bench.session, Connection(), StubStream()
    session._holder = holder
    overs = []
    session.start(stream, lambda: overs.append(1))
    bench.journal.faults["append"] = lambda *_, **__: error
    with pytest.raises(SessionLost):
        await session.append(1, [FRAME], None)
    assert session.is_lost
    assert holder.ended == 4412
    assert stream.stopped.is_set()
    assert bench.unused == [session]
    bench.journal.faults.clear()
    with pytest.raises(SessionLost):
        await session.append(1, [FRAME], None)
    await trio.testing.wait_all_tasks_blocked()
    assert overs == [1]
    assert session.streams == ()


async def test_session_lets_a_full_journal_be_somebody_elses_decision(bench) -> None:
    """Nothing was written and the epoch stands: it may be tried again."""
    bench.journal.faults["append"] = lambda *_, **__: JournalFull(new_work=False)
    with pytest.raises(JournalFull):
        await bench.session.append(1, [FRAME], None)
    assert not bench.session.is_lost


async def test_newest_attachment_wins_by_its_epoch_not_by_its_arrival(bench) -> None:
    """Two claims: whichever wakes first, the higher epoch has the session in the end."""
    claims = [await bench.journal.claim_session("s", "t", bytes(32)) for _ in range(3)]
    first, second, third = Connection(), Connection(), Connection()
    bench.session.attach(first, claims[0].session)
    bench.session.attach(third, claims[2].session)
    assert (first.ended, third.ended) == (4409, None)
    with pytest.raises(Superseded):
        bench.session.attach(second, claims[1].session)
    bench.session.detach(first)  # late, and not its business any more
    assert not bench.session.is_unused
    bench.session.detach(third)
    assert bench.session.is_unused
    assert bench.unused == [bench.session]


async def test_session_left_by_its_connection_is_released(bench) -> None:
    """Its time to be claimed runs from then on; a claim that came first undoes nothing."""
    holder = Connection()
    claimed = await bench.journal.claim_session("s", "t", bytes(32))
    bench.session.attach(holder, claimed.session)
    bench.session.detach(holder)
    await trio.testing.wait_all_tasks_blocked()
    assert bench.journal._shelf.sessions["s"].record.released_ms is not None


async def test_connection_may_outlive_the_sessions_nursery(bench) -> None:
    """Whatever is cancelled first when a server ends at once: leaving raises nothing."""
    holder = Connection()
    claimed = await bench.journal.claim_session("s", "t", bytes(32))
    async with trio.open_nursery() as nursery:
        session = Session(
            claimed.session,
            journal=bench.journal,
            courier=FrameCourier(bench.journal),
            nursery=nursery,
            claims_settled=bench.settled,
            lose_other=bench.lost.append,
            on_unused=bench.unused.append,
        )
        session.attach(holder, claimed.session)
    session.detach(holder)
    assert session.is_unused


async def test_messages_count_as_processed_in_order(bench) -> None:
    """An early one waits for the missing one; one that finds no room among the early tries again."""
    session = bench.session
    await session.record(2)
    assert session.last_sequence_id == 0
    await session.submit(request(1))
    assert session.last_sequence_id == 2


async def test_message_too_early_waits_for_its_turn(autojump_clock, bench) -> None:
    """The journal remembers only so many ahead of a missing one."""
    calls = []

    def fault(*arguments):
        calls.append(arguments)
        return TooManyEarlyMessages(1, 1) if len(calls) < 4 else None

    for name, call in (("record_message", bench.session.record), ("submit", bench.session.submit)):
        calls.clear()
        bench.journal.faults = {name: fault}
        await call(1 if name == "record_message" else request(2))
        assert len(calls) == 4
    assert bench.session.last_sequence_id == 2


@pytest.mark.parametrize(
    ("error", "code"), [(JournalFull(new_work=False), 1013), (ZeroDivisionError(), 1011)]
)
async def test_streams_last_failure_ends_its_session_alone(bench, error, code) -> None:
    """What a stream's task raises is contained here."""
    holder, stream = Connection(), StubStream(error=error)
    bench.session._holder = holder
    bench.session.start(stream, lambda: None)
    stream.stop()
    await trio.testing.wait_all_tasks_blocked()
    assert holder.ended == code
    assert bench.session.is_lost


async def test_abandoning_never_fails(bench) -> None:
    """A stream without durability has ended, whatever the journal says to it."""
    await bench.session.submit(request())
    await bench.session.abandon(1)
    await bench.session.abandon(1)
    assert isinstance(bench.journal, MemoryJournal)


async def test_session_that_takes_a_stream_over_has_its_former_session_stop(bench):
    """Whatever is generated for it there is nobody's from now on."""
    other = NewSession(session_id="o", tenant="t", token_hash=bytes(32))
    await bench.journal.create_session(other)
    await bench.journal.submit("o", 1, request())
    await bench.journal.release_session("o", 1)
    submission = await bench.session.submit(request())
    assert (submission.replayed, submission.stream.session_id) == (True, "s")
    assert bench.lost == ["o"]

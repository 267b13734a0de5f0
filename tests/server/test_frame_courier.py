"""Tests of `seedance_server.frame_courier`."""

import trio
from trio.testing import wait_all_tasks_blocked

from seedance_server.frame_courier import FrameCourier
from seedance_server.journal.append import Append
from seedance_server.journal.errors import JournalClosed


class Journal:
    """Appends when it is told to; stream 13 is refused."""

    def __init__(self) -> None:
        self.batches, self.go = [], trio.Event()

    async def append_all(self, appends):
        self.batches.append([append.stream_id for append in appends])
        await self.go.wait()
        return [LookupError() if append.stream_id == 13 else None for append in appends]


def put(courier: FrameCourier, told: list[object], *stream_ids: int) -> None:
    for stream_id in stream_ids:
        courier.put(
            Append("s", 1, stream_id, ()), lambda error, id_=stream_id: told.append((id_, type(error)))
        )


async def test_what_comes_together_is_carried_together_and_told_of_each() -> None:
    """One go to the journal for all streams of a step; what comes meanwhile goes with the next."""
    journal, told = Journal(), []
    courier = FrameCourier(journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(courier.run)
        await wait_all_tasks_blocked()
        put(courier, told, *range(1, 140))
        await wait_all_tasks_blocked()
        put(courier, told, 200)
        assert not told
        journal.go.set()
        await wait_all_tasks_blocked()
        assert [len(batch) for batch in journal.batches] == [128, 12]
        assert [stream_id for stream_id, _ in told] == [*range(1, 140), 200]
        assert [stream_id for stream_id, error in told if error is not type(None)] == [13]
        nursery.cancel_scope.cancel()


async def test_one_that_can_not_be_told_is_nobody_elses_trouble() -> None:
    """A bug of one stream must not keep the frames of all others from being published."""
    journal, told = Journal(), []
    journal.go.set()
    courier = FrameCourier(journal)

    def fail(error) -> None:
        raise LookupError("from a stream")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(courier.run)
        await wait_all_tasks_blocked()
        courier.put(Append("s", 1, 1, ()), fail)
        put(courier, told, 2)
        await wait_all_tasks_blocked()
        put(courier, told, 3)
        await wait_all_tasks_blocked()
        assert told == [(2, type(None)), (3, type(None))]
        nursery.cancel_scope.cancel()


async def test_what_is_under_way_when_it_ends_is_settled_and_what_waits_is_refused() -> None:
    """Whoever put frames learns of their end in any case; nothing is told twice."""
    journal, told = Journal(), []
    courier = FrameCourier(journal)
    put(courier, told, 1)
    assert told == [(1, JournalClosed)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(courier.run)
        await wait_all_tasks_blocked()
        put(courier, told, 2)
        await wait_all_tasks_blocked()
        put(courier, told, 3)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            assert len(told) == 1
            journal.go.set()
    assert told[1:] == [(2, type(None)), (3, JournalClosed)]

"""Tests of `seedance_server.senders`: one connection's streams, over the whole server in memory."""

import trio

from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import FramePage
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.cursor import ReceiveCursor
from seedance_wire.messages import Ack, Delta, Durability, OnDisconnect, Resume, Resumed
from seedance_wire.running_digest import RunningDigest
from tests.server.wire_client import wire_client


class SlowReads(MemoryJournal):
    """A journal that takes its time to find a frame."""

    wait_s = 0.0

    async def read_frames(self, session_id: str, stream_id: int, after_id: int, limit: int) -> FramePage:
        await trio.sleep(self.wait_s)
        return await super().read_frames(session_id, stream_id, after_id, limit)


async def test_senders_send_a_stream_from_where_it_is_asked_for_and_never_twice_at_once(
    autojump_clock,
) -> None:
    """A second RESUME ends what the first began: after RESUMED each frame comes once, in order."""
    engine = ScriptedEngine([f"{number} " for number in range(300)])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        taken = []
        while len(taken) < 40:
            if isinstance(event := await client.receive(), Delta):
                taken.append(event)
        async with wire_client(server.connect(), former=client.welcome) as again:
            assert isinstance(await again.resume(1, taken[:10]), Resumed)
            taken = [*taken[:10], *await again.frames(1)]
            while taken[-1].id < again.connection.position(1)[0].applied:
                taken += await again.frames(1)
            assert isinstance(await again.resume(1, taken), Resumed)
            taken += await again.frames()
            assert [frame.id for frame in taken] == list(range(1, 302))


async def test_senders_end_what_lives_with_the_connection_and_leave_the_rest(autojump_clock) -> None:
    """Of four streams on a connection that is cut, those that were to end with it do."""
    engine = ScriptedEngine(["x"] * 100_000)
    async with serve_in_memory(engine) as server:
        async with wire_client(server.connect()) as client:
            for durability in (Durability.NONE, Durability.COMMITTED):
                for on_disconnect in (OnDisconnect.CANCEL, OnDisconnect.CONTINUE):
                    await client.submit(durability=durability, on_disconnect=on_disconnect)
            begun = set()
            while len(begun) < 4:
                if isinstance(event := await client.receive(), Delta):
                    begun.add(event.stream_id)
        await trio.sleep(0.1)
        assert len(engine.active) == 1
        assert server.registry.statistics().streams == 1


async def test_senders_take_an_ack_of_a_stream_that_is_not_sent_for_a_late_one(autojump_clock) -> None:
    """An ACK may cross with the end of its stream."""
    async with serve_in_memory() as server, wire_client(server.connect()) as client:
        await client.submit()
        stream_id = await client.accepted()
        await client.until_end()
        await client.send(Ack(processed=((stream_id, 2),)))
        await client.submit()
        await client.accepted()


async def test_senders_keep_an_ack_that_comes_while_the_stream_is_looked_for(autojump_clock) -> None:
    """Said once is enough, though the window that it is for begins after it."""
    journal = SlowReads()
    engine = ScriptedEngine(["x"] * 300)
    async with serve_in_memory(engine, journal=journal) as server:
        async with wire_client(server.connect()) as client:
            client.acks = False
            await client.submit()
            await client.accepted()
            taken = await client.frames(32)
        journal.wait_s = 1
        async with wire_client(server.connect(), former=client.welcome) as again:
            digest = RunningDigest()
            digest.update(b"x" * 32)
            again.connection.know_position(1, ReceiveCursor(1, applied=32, applied_bytes=32), digest)
            await again.send(Resume(stream_id=1, last_processed_id=32, taken_id=0))
            await again.send(Ack(processed=((1, taken[-1].id),)))
            frames = await again.frames()
            assert [frame.id for frame in frames] == list(range(33, 302))


async def test_senders_hold_a_client_that_takes_nothing_to_one_window_over_any_number_of_cuts(
    autojump_clock,
) -> None:
    """What it was sent and has not taken stays counted when it comes back."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        async with wire_client(server.connect()) as client:
            client.acks = False
            await client.submit()
            await client.accepted()
            held = await client.frames(32)
        for _ in range(3):
            async with wire_client(server.connect(), former=client.welcome) as again:
                again.acks = False
                assert isinstance(await again.resume(1, held, taken_id=0), Resumed)
                with trio.move_on_after(10):
                    held += await again.frames(1)
        assert len(held) == 32
        async with wire_client(server.connect(), former=client.welcome) as again:
            assert isinstance(await again.resume(1, held, taken_id=32), Resumed)
            held += await again.frames()
        assert [frame.id for frame in held] == list(range(1, 1002))

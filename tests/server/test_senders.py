"""Tests of `seedance_server.senders`: one connection's streams, over the whole server in memory."""

import trio

from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Ack, Delta, Durability, OnDisconnect, Resumed
from tests.server.wire_client import wire_client


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

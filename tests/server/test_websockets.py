"""Tests of `seedance_server.websockets`: the first word, the last word, and whoever comes between."""

import trio

import seedance_server.websockets
from seedance_server.config import Config
from seedance_server.testing import serve_in_memory
from seedance_wire.messages import Bye
from tests.server.attacks import (
    PING,
    UPGRADE,
    frame,
    message_bytes,
    raw_websocket,
    read_close_code,
    read_head,
)
from tests.server.wire_client import wire_client


async def test_websockets_takes_a_first_message_that_came_with_the_upgrade(autojump_clock) -> None:
    """What follows the head in the same segment is kept for the WebSocket."""
    from seedance_wire.messages import Hello
    from tests.server.attacks import message_bytes, read_frame

    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(UPGRADE + message_bytes(Hello()))
        assert (await read_head(stream)).startswith(b"HTTP/1.1 101 ")
        opcode, payload = await read_frame(stream)
        assert opcode == 2
        assert payload


async def test_websockets_tells_who_gives_way_why(autojump_clock) -> None:
    """A full lobby isn't a bug in the server: come back."""
    async with serve_in_memory(config=Config(model_path="m", max_unauthenticated=1)) as server:
        silent = await raw_websocket(server.connect(), hello=False)
        await trio.sleep(1)
        assert server.door.statistics().websockets == 1
        async with wire_client(server.connect()):
            assert await read_close_code(silent) == 1013
        await trio.sleep(1)
        assert server.door.statistics().contained == 0


async def test_websockets_cancelled_says_that_it_goes(autojump_clock) -> None:
    """A server that is ended at once still says goodbye, and doesn't call that a bug."""
    async with trio.open_nursery() as nursery, serve_in_memory() as server:
        stream = await raw_websocket(server.connect())
        codes = []

        @nursery.start_soon
        async def read() -> None:
            codes.append(await read_close_code(stream))

        await trio.sleep(1)
    assert codes == [1001]


async def test_websockets_tells_who_was_let_in_while_the_drain_began(autojump_clock, monkeypatch) -> None:
    """Between the decision and the WebSocket nobody is on the list that the drain goes through."""
    async with serve_in_memory() as server:
        wrap = seedance_server.websockets.wrap_server_stream

        async def slow(*arguments, **more):
            await trio.sleep(1)
            return await wrap(*arguments, **more)

        monkeypatch.setattr(seedance_server.websockets, "wrap_server_stream", slow)
        async with trio.open_nursery() as nursery:
            stream = server.connect()
            await stream.send_all(UPGRADE)
            await trio.sleep(0.5)
            nursery.start_soon(server.door.drain, 30)
            await read_head(stream)
            began_s = trio.current_time()
            assert await read_close_code(stream) == 1001
            assert trio.current_time() - began_s < 1
            await stream.aclose()


async def test_websockets_contains_nothing_when_closes_and_pings_cross(autojump_clock) -> None:
    """The library can't answer a ping after our close: an ordinary end, not worth a warning."""
    async with serve_in_memory() as server:
        for _ in range(50):
            stream = await raw_websocket(server.connect())
            await stream.send_all(message_bytes(Bye()) + frame(PING, b"x") * 3)
            assert await read_close_code(stream) == 1000
            await stream.send_all(frame(PING, b"x"))
            await stream.aclose()
        await trio.sleep(3)
        assert server.door.statistics().contained == 0

"""The relay that counts."""

import pytest
import trio

from byte_counter import counting

ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
FRAMES = b"\x82\x03abc" + b"\x89\x00" + b"\x81\x7e\x00\xc8" + b"x" * 200 + b"\x82\x00"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_counted_is_what_comes_behind_the_upgrade(size: int) -> None:
    """Headers and pings too, wherever the stream is cut; the client gets every byte."""
    said = ANSWER + FRAMES

    async def serve(stream: trio.SocketStream) -> None:
        assert await stream.receive_some() == b"GET"
        for start in range(0, len(said), size):
            await stream.send_all(said[start : start + size])
        await stream.send_eof()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        async with counting(listener.socket.getsockname()[1]) as (port, counted):
            async with await trio.open_tcp_stream("127.0.0.1", port) as client:
                await client.send_all(b"GET")
                got = b""
                with trio.fail_after(5):
                    while len(got) < len(said):
                        got += await client.receive_some()
            assert got == said
            assert (counted.bytes, counted.messages, counted.largest) == (len(FRAMES), 3, 200)
        nursery.cancel_scope.cancel()

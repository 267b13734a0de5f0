"""A relay between a client and a server that counts what the server sends: bytes and WebSocket messages.

What it counts is what leaves the server's socket behind the answer to the upgrade: WebSocket headers, pings
and all. It reads frame headers and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

__all__ = ["Counted", "counting"]

_READ_BYTES = 65_536
_HEAD_END = b"\r\n\r\n"
_MESSAGE_OPCODES = (1, 2)


@define
class Counted:
    """What came from the server.

    Attributes:
        bytes: All that came behind the answer to the upgrade.
        messages: Text and binary messages among it.
        largest: Bytes of the longest message, without its header.
    """

    bytes: int = 0
    messages: int = 0
    largest: int = 0


@define
class _Frames:
    """Reads frame headers, wherever they are cut."""

    counted: Counted
    head: bytes = b""
    upgraded: bool = False
    skip: int = field(default=0)

    def feed(self, data: bytes) -> None:
        if not self.upgraded:
            self.head += data
            if _HEAD_END not in self.head:
                return
            data = self.head.partition(_HEAD_END)[2]
            self.head, self.upgraded = b"", True
        self.counted.bytes += len(data)
        data = self.head + data
        while True:
            step = min(self.skip, len(data))
            data, self.skip = data[step:], self.skip - step
            if self.skip or len(data) < 2 or len(data) < (size := _header_size(data)):
                self.head = data
                return
            length = data[1] if size == 2 else int.from_bytes(data[2:size])
            if data[0] & 0x0F in _MESSAGE_OPCODES:
                self.counted.messages += 1
                self.counted.largest = max(self.counted.largest, length)
            self.skip = size + length


def _header_size(data: bytes) -> int:
    return {126: 4, 127: 10}.get(data[1] & 0x7F, 2)


@asynccontextmanager
async def counting(port: int) -> AsyncIterator[tuple[int, Counted]]:
    """Relay to a port of this machine; yield the relay's own port, and what is counted."""
    counted = Counted()

    async def relay(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", port)
        frames = _Frames(counted)
        async with client, server, trio.open_nursery() as both:

            async def up() -> None:
                async for data in client:
                    await server.send_all(data)
                both.cancel_scope.cancel()

            both.start_soon(up)
            while data := await server.receive_some(_READ_BYTES):
                frames.feed(data)
                await client.send_all(data)
            both.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, relay, [listener])
        yield listener.socket.getsockname()[1], counted
        nursery.cancel_scope.cancel()

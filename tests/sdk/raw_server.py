"""A WebSocket server made of bytes, for tests of what a hostile or broken server can send."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from seedance_sdk.endpoint import Endpoint
from seedance_sdk.limits import Limits
from seedance_sdk.transport import Transport, WebSocketConnector

ENDPOINT = Endpoint.of(
    "ws://localhost:8080/v1/chat", subprotocol="seedance.v1", api_key="sk-1", user_agent="test"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class RawServer:
    """The server's end of a byte stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.request = b""
        self._received = b""

    async def read_request(self) -> None:
        """Reads the request for the upgrade."""
        while b"\r\n\r\n" not in self.request:
            self.request += await self.stream.receive_some(4096)

    async def upgrade(self, subprotocol: str | None = "seedance.v1") -> None:
        """Answers the request as RFC 6455 section 4.2.2 says."""
        await self.read_request()
        key = next(
            line.split(b":", 1)[1].strip()
            for line in self.request.split(b"\r\n")
            if line.lower().startswith(b"sec-websocket-key:")
        )
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += b"Sec-WebSocket-Accept: " + accept + b"\r\n"
        if subprotocol is not None:
            head += b"Sec-WebSocket-Protocol: " + subprotocol.encode() + b"\r\n"
        await self.stream.send_all(head + b"\r\n")

    async def send_frame(self, opcode: int, payload: bytes = b"", *, fin: bool = True) -> None:
        """Sends one unmasked frame."""
        await self.stream.send_all(frame(opcode, payload, fin=fin))

    async def read_frame(self) -> tuple[int, bytes]:
        """Reads one masked frame: its opcode and payload."""
        first, second = await self._read(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self._read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._read(8))
        mask = await self._read(4)
        payload = await self._read(size)
        return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))

    async def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            data = await self.stream.receive_some(65_536)
            if not data:
                raise trio.EndOfChannel
            self._received += data
        data, self._received = self._received[:size], self._received[size:]
        return data


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """One unmasked frame."""
    head = bytes([opcode | (0x80 if fin else 0)])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    if len(payload) < 65_536:
        return head + b"\x7e" + struct.pack("!H", len(payload)) + payload
    return head + b"\x7f" + struct.pack("!Q", len(payload)) + payload


@asynccontextmanager
async def connected(
    script: Callable[[RawServer], Awaitable[None]], limits: Limits | None = None
) -> AsyncIterator[Transport]:
    """Connects to a server that does what ``script`` says, then closes."""
    near, far = trio.testing.memory_stream_pair()

    async def open_stream(_: Endpoint) -> trio.abc.Stream:
        return near

    async def serve() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
            await script(RawServer(far))  # the client may be gone
        await far.aclose()

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            async with WebSocketConnector(open_stream=open_stream)(ENDPOINT, limits or Limits()) as transport:
                yield transport
        except Exception as error:  # noqa: BLE001 - carried around the nursery: it would wrap it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure

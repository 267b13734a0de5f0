"""Raw bytes for tests that must say what no library would: frames, handshakes, floods."""

from __future__ import annotations

import secrets
import struct

import trio

from seedance_wire.codec import make_codec
from seedance_wire.messages import ChatMessage, Hello, Message, Submit

UPGRADE = (
    b"GET /v1/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: seedance.v1\r\n\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True) -> bytes:
    """One WebSocket frame as a client sends it, masked with zeros."""
    size = len(payload)
    first = (0x80 if fin else 0) | opcode
    mask_bit = 0x80 if masked else 0
    if size < 126:
        head = struct.pack("!BB", first, mask_bit | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, size)
    return head + (b"\0\0\0\0" if masked else b"") + payload


def message_bytes(message: Message) -> bytes:
    """A protobuf message in one frame."""
    payload = make_codec("seedance.v1").encode([message])
    assert isinstance(payload, bytes)
    return frame(BINARY, payload)


def submit_bytes(sequence_id: int, text: str = "Hi") -> bytes:
    """A SUBMIT in one frame."""
    messages = (ChatMessage(role="user", content=text),)
    return message_bytes(
        Submit(sequence_id=sequence_id, idempotency_key=secrets.token_bytes(16), messages=messages)
    )


async def read_head(stream: trio.abc.ReceiveStream) -> bytes:
    """Reads the answer to an upgrade, byte by byte so that nothing after it is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = await stream.receive_some(1)
        if not byte:
            break
        head += byte
    return head


async def raw_websocket(stream: trio.abc.Stream, *, hello: bool = True) -> trio.abc.Stream:
    """Upgrades `stream`, says HELLO and reads WELCOME, byte by byte; returns it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, UPGRADE)
        head = await read_head(stream)
    assert head.startswith(b"HTTP/1.1 101"), head
    if hello:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, message_bytes(Hello()))
            await read_frame(stream)
    return stream


async def read_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


async def read_frame(stream: trio.abc.ReceiveStream) -> tuple[int, bytes]:
    """Reads one frame of the server; returns opcode and payload."""
    first, second = await read_exactly(stream, 2)
    size = second & 0x7F
    if size == 126:
        (size,) = struct.unpack("!H", await read_exactly(stream, 2))
    elif size == 127:
        (size,) = struct.unpack("!Q", await read_exactly(stream, 8))
    return first & 0x0F, await read_exactly(stream, size)


async def read_close_code(stream: trio.abc.ReceiveStream) -> int | None:
    """Reads until a close frame, or the end; returns the code, or None without one."""
    try:
        while True:
            opcode, payload = await read_frame(stream)
            if opcode == CLOSE:
                return struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
    except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
        return None


async def read_to_end(stream: trio.abc.ReceiveStream) -> int:
    """Reads until the server has closed the transport; returns the number of bytes."""
    count = 0
    try:
        while data := await stream.receive_some(65536):
            count += len(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    return count

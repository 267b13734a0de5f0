"""Thousands of connections that say HELLO, answer pings and nothing else: as cheap as a client can be.

They run on asyncio in a thread of their own, each a state machine of a few lines, so that what is measured is
the server. Only what such a client meets is read: an upgrade, small unmasked frames, a close.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

from seedance_wire.connection import Connection
from seedance_wire.messages import Hello
from seedance_wire.state import Role

__all__ = ["IdleClients"]

AT_ONCE = 32
"""Connections in the making at once: a server has room for few that have said nothing."""
CONNECT_S = 30.0
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class _Idle(asyncio.Protocol):
    def __init__(self, group: _Group) -> None:
        self._group = group
        self._buffer = b""
        self._upgraded = False
        self._transport: asyncio.Transport
        self.welcomed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._group.transports.add(transport)
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET /v1/chat HTTP/1.1\r\nHost: {self._group.host}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: seedance.v1\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                self._transport.close()
                return
            self._upgraded, self._buffer = True, rest
            payload = Connection(Role.CLIENT, "seedance.v1").send(Hello(sdk_name="idle"))
            assert isinstance(payload, bytes)
            self._send(_BINARY, payload)
        while (frame := self._take()) is not None:
            self._act(*frame)

    def _take(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1], 2
        if size == 126:
            if len(buffer) < 4:
                return None
            (size,) = struct.unpack("!H", buffer[2:4])
            start = 4
        if len(buffer) < start + size:
            return None
        self._buffer = buffer[start + size :]
        return buffer[0] & 0x0F, buffer[start : start + size]

    def _act(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self._group.pings += 1
            self._send(_PONG, payload)
        elif opcode == _CLOSE:
            self._group.closed[struct.unpack("!H", payload[:2])[0] if payload else 1005] += 1
            self._transport.close()
        elif not self.welcomed.done():
            self.welcomed.set_result(None)

    def _send(self, opcode: int, payload: bytes) -> None:
        self._transport.write(
            bytes((0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload
        )  # a mask of zeros

    def connection_lost(self, _error: Exception | None) -> None:
        self._group.lost += 1
        self._group.transports.discard(self._transport)
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError("the connection ended before WELCOME"))
            self.welcomed.exception()  # whoever waits hears of it; nobody has to


class _Group:
    """The connections to one server.

    Attributes:
        pings: Pings answered.
        closed: Closes, by code.
        lost: Connections that ended, in whichever way.
        transports: Those that haven't.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.pings = 0
        self.closed: Counter[int] = Counter()
        self.lost = 0
        self.transports: set[asyncio.Transport] = set()


class IdleClients:
    """So many connections to each of several servers, until the block is left.

    Args:
        urls: The servers.
        count: Connections to each.

    Raises:
        OSError: One could not be made.
    """

    def __init__(self, urls: Sequence[str], count: int) -> None:
        self._groups = [_Group(url) for url in urls]
        self._count = count
        self._connected = threading.Event()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._connected.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def counts(self) -> list[dict[str, object]]:
        """Pings answered, closes by code and connections lost so far, server by server."""
        return [
            {
                "pings": group.pings,
                "closed": {str(code): n for code, n in group.closed.items()},
                "lost": group.lost,
            }
            for group in self._groups
        ]

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._connect_all())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
        self._connected.set()
        if self._failure is None:
            self._loop.run_forever()
        for group in self._groups:
            for transport in tuple(group.transports):
                transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0))  # they tell their protocols in the next turn
        self._loop.close()

    async def _connect_all(self) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def connect(group: _Group) -> None:
            async with room:
                async with asyncio.timeout(CONNECT_S):
                    _, idle = await self._loop.create_connection(lambda: _Idle(group), group.host, group.port)
                    await idle.welcomed

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                for group in self._groups:
                    tasks.create_task(connect(group))

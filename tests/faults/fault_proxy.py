"""A proxy between a client and a server that harms connections on purpose, at an exact byte if need be.

Each connection has two ways, one in each direction, and each way can be given a `Harm`: at this byte be cut,
stalled, half-closed or slowed down. The same can be done at any moment to a connection that is running. Bytes
are passed on unchanged and in order until then, and a harm at byte n lets exactly n bytes through.

It must not know what the bytes mean. It works on any trio stream: TCP, or memory streams in simulated time.
"""

from __future__ import annotations

import math
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from functools import partial

import trio
from attrs import Factory, define, field, frozen

__all__ = ["FaultProxy", "Harm", "HarmKind", "Plan", "ProxiedConnection", "Way", "tcp_proxy"]

_READ_BYTES = 4_096
_CONNECT_TIMEOUT_S = 10.0
_NO_LINGER = struct.pack("ii", 1, 0)


class HarmKind(Enum):
    """What is done to a connection."""

    CUT = "cut"
    """Both sides see the end of the stream at once."""
    RESET = "reset"
    """Both sides see a connection reset; what they had not read yet is lost with it."""
    HALF_CLOSE = "half-close"
    """This way ends, the other goes on."""
    STALL = "stall"
    """This way passes nothing any more; the connection stays open."""
    DELAY = "delay"
    """From here on each piece of this way is passed `Harm.delay_s` later."""


@frozen
class Harm:
    """One fault of one way.

    Attributes:
        kind: What.
        after_bytes: How many bytes of this way are passed before.
        delay_s: For `HarmKind.DELAY`, how long each piece waits.
    """

    kind: HarmKind
    after_bytes: int = 0
    delay_s: float = 0.0


@frozen
class Plan:
    """What is to happen to one connection; nothing by default.

    Attributes:
        up: From the client to the server, in the order of their bytes.
        down: From the server to the client.
        refused: Close it before a byte is passed, as a server that is not there would.
    """

    up: tuple[Harm, ...] = ()
    down: tuple[Harm, ...] = ()
    refused: bool = False


@define
class Way:
    """One direction of a connection."""

    name: str
    source: trio.abc.Stream
    target: trio.abc.Stream
    harms: deque[Harm]
    passed: int = 0
    delay_s: float = 0.0
    stalled: bool = False
    released: trio.Event = Factory(trio.Event)

    def stall(self) -> None:
        """Passes nothing until `release`."""
        self.stalled, self.released = True, trio.Event()

    def release(self) -> None:
        """Passes again what was held back."""
        self.stalled = False
        self.released.set()


@define(eq=False)
class ProxiedConnection:
    """One client's connection and the server's, joined.

    Attributes:
        up: Client to server.
        down: Server to client.
        counts: The proxy's, to which each harm done is added.
    """

    client: trio.abc.Stream
    server: trio.abc.Stream
    up: Way
    down: Way
    counts: Counter[HarmKind]
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def cut(self, kind: HarmKind = HarmKind.CUT) -> None:
        """Ends both sides now; ``kind`` is CUT or RESET."""
        if not self._scope.cancel_called:
            self.counts[kind] += 1
            if kind is HarmKind.RESET:
                _reset_on_close(self.client)
                _reset_on_close(self.server)
            self._scope.cancel()

    async def run(self) -> None:
        """Passes bytes until both ways have ended or the connection was cut; then both sides are closed."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, self.up)
                    nursery.start_soon(self._pass, self.down)
        finally:
            with trio.CancelScope(shield=True):  # closing forcefully waits for nothing
                await trio.aclose_forcefully(self.client)
                await trio.aclose_forcefully(self.server)

    async def _pass(self, way: Way) -> None:
        try:
            while True:
                await self._suffer(way)
                room = way.harms[0].after_bytes - way.passed if way.harms else _READ_BYTES
                data = await way.source.receive_some(min(room, _READ_BYTES))
                if not data:
                    break
                if way.delay_s:
                    await trio.sleep(way.delay_s)
                while way.stalled:
                    await way.released.wait()
                await way.target.send_all(data)
                way.passed += len(data)
            await _end(way.target)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()  # one side has gone, and takes the other with it

    async def _suffer(self, way: Way) -> None:
        while way.harms and way.harms[0].after_bytes <= way.passed:
            harm = way.harms.popleft()
            match harm.kind:
                case HarmKind.CUT | HarmKind.RESET:
                    self.cut(harm.kind)
                    await trio.sleep_forever()
                case HarmKind.HALF_CLOSE:
                    self.counts[harm.kind] += 1
                    await _end(way.target)
                    await trio.sleep_forever()
                case HarmKind.STALL:
                    self.counts[harm.kind] += 1
                    way.stall()
                    await way.released.wait()
                case HarmKind.DELAY:
                    self.counts[harm.kind] += 1
                    way.delay_s = harm.delay_s


@define(eq=False)
class FaultProxy:
    """Joins each client that is handed to `handle` with a server of its own.

    Args:
        connect: Reaches the server; an ``OSError`` counts as a server that is not there.
        plan: Says what happens to connection number n, from 0; asked when it is made.
    """

    connect: Callable[[], Awaitable[trio.abc.Stream]]
    plan: Callable[[int], Plan] = lambda _number: Plan()
    connections: set[ProxiedConnection] = Factory(set)
    counts: Counter[HarmKind] = Factory(Counter)
    refused: int = 0
    unreachable: int = 0
    made: int = 0

    async def handle(self, client: trio.abc.Stream) -> None:
        """Serves one client until its connection has ended; returns with the stream closed."""
        plan, self.made = self.plan(self.made), self.made + 1
        if plan.refused:
            self.refused += 1
            await trio.aclose_forcefully(client)
            return
        try:
            with trio.fail_after(_CONNECT_TIMEOUT_S):
                server = await self.connect()
        except (OSError, trio.TooSlowError):
            self.unreachable += 1
            await trio.aclose_forcefully(client)
            return
        up = Way("up", client, server, deque(plan.up))
        down = Way("down", server, client, deque(plan.down))
        connection = ProxiedConnection(client, server, up, down, self.counts)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens on a free port of the loopback until cancelled; started with that port."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self.handle, [listener])

    def cut_all(self, kind: HarmKind = HarmKind.CUT) -> int:
        """Cuts every connection now; returns how many there were."""
        for connection in tuple(self.connections):
            connection.cut(kind)
        return len(self.connections)

    @property
    def faults(self) -> int:
        """Harms done so far, refused connections included."""
        return self.counts.total() + self.refused


def tcp_proxy(port: int, plan: Callable[[int], Plan] = lambda _number: Plan()) -> FaultProxy:
    """A proxy to a port of the loopback."""
    return FaultProxy(partial(trio.open_tcp_stream, "127.0.0.1", port, happy_eyeballs_delay=math.inf), plan)


async def _end(target: trio.abc.Stream) -> None:
    if isinstance(target, trio.abc.HalfCloseableStream):
        await target.send_eof()
    else:
        await target.aclose()


def _reset_on_close(stream: trio.abc.Stream) -> None:
    if isinstance(stream, trio.SocketStream):
        with suppress(OSError):  # the peer may have closed it already
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

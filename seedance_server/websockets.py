"""The connections that became WebSockets: from the handshake to the last word.

The library is only ever handed a guarded stream and a request head of our own making; it is never waited for
when a connection ends. Whoever is connected is on the list from the moment that it could be told something,
so a drain, or a key that opens nothing any more, reaches everybody.

It must not know what is said over a WebSocket, nor who may come in.
"""

from __future__ import annotations

from collections import Counter

import structlog
import trio
from attrs import define, field
from trio_websocket import wrap_server_stream

from seedance_server.gate import Pass
from seedance_server.guard import GuardedStream
from seedance_server.heartbeats import Heartbeats
from seedance_server.house import House, Service
from seedance_server.lobby import Visit
from seedance_server.peer import Farewell, Peer
from seedance_server.upgrade import Upgrade, canonical_head
from seedance_wire.compression import longest_packed
from seedance_wire.connection import Connection
from seedance_wire.errors import CloseCode
from seedance_wire.messages import ErrorCode
from seedance_wire.state import Role

__all__ = ["Carried", "WebSockets"]

_log = structlog.get_logger(__name__)

_LIBRARY_READ_BYTES = 4096
"""What the WebSocket library reads at once: a tiny frame costs it about 8 µs, 64 KiB of them would stall the
loop for 87 ms."""
_LIBRARY_QUEUE = 8
"""Messages that the library holds for the reader, which never makes them wait for long."""
_KNOWN_CODES = {*CloseCode, *range(1000, 1016)}
"""Those of RFC 6455 (section 7.4) and the protocol's own."""
_EVICTED_CLOSE_S = 0.1
"""Time for the last word to a connection that gives way: it goes into an empty buffer, or not at all."""

_CROWDED_OUT = Farewell(CloseCode.TRY_AGAIN_LATER, "too many connections that have said nothing")
_SHUTTING_DOWN = Farewell(CloseCode.GOING_AWAY, "the server is shutting down")
_ENGINE_FAILED = Farewell(CloseCode.INTERNAL_ERROR, "the engine failed: come back")
_KEY_REVOKED = Farewell(CloseCode.UNAUTHENTICATED, "the key opens nothing any more")


@define
class Carried:
    """Bytes of WebSocket messages by direction, without the headers of their frames.

    Attributes:
        travelled: ``sent`` to clients and ``received`` from them.
        plain: The same without compression.
    """

    travelled: Counter[str] = field(factory=lambda: Counter(sent=0, received=0))
    plain: Counter[str] = field(factory=lambda: Counter(sent=0, received=0))

    def add(self, connection: Connection) -> None:
        """Adds what a connection has carried."""
        counts = connection.statistics()
        self.travelled.update(sent=counts.bytes_sent, received=counts.bytes_received)
        self.plain.update(sent=counts.plain_bytes_sent, received=counts.plain_bytes_received)


class WebSockets:
    """Serves them.

    Args:
        house: What they are let in to.

    Attributes:
        open: How many there are.
        upgraded: How many there were.
        closes: With which close code they ended, how often.
        heartbeats: Asks silent ones for a sign of life.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._peers: dict[Peer, Pass] = {}
        self._connections: set[Connection] = set()
        self._past = Carried()
        self._left = trio.Event()
        self._is_broken_off = False
        self.open = 0
        self.upgraded = 0
        self.closes: Counter[str] = Counter()
        self.heartbeats = Heartbeats(house.config.heartbeat_s, house.config.heartbeat_timeout_s)

    def carried(self) -> Carried:
        """What went over all of them so far."""
        carried = Carried(self._past.travelled.copy(), self._past.plain.copy())
        for connection in self._connections:
            carried.add(connection)
        return carried

    def go_away(self, deadline_ms: int) -> None:
        """Tells every client to go elsewhere."""
        for peer in tuple(self._peers):
            peer.go_away(_SHUTTING_DOWN.reason, deadline_ms)

    def leave(self) -> None:
        """Ends what lives with a connection, and then the connections; the other streams stay as they are."""
        for peer in tuple(self._peers):
            peer.leave(ErrorCode.DRAINING, "the server is shutting down: go elsewhere")

    def break_off(self) -> None:
        """The engine has failed: ends what lives with a connection, and then every connection, from now on.

        The other streams stay as they are: their clients come back, and the next process goes on with them.
        """
        self._is_broken_off = True
        for peer in tuple(self._peers):
            _break_off(peer)

    def show_out(self) -> None:
        """Closes the connections whose key opens nothing any more; their streams wait in the journal."""
        for peer, one in tuple(self._peers.items()):
            if not self._house.gate.holds(one):
                peer.end(_KEY_REVOKED)

    async def wait_all_left(self) -> None:
        """Waits until there is none."""
        while self.open:
            self._left = trio.Event()
            await self._left.wait()

    async def serve(
        self,
        guard: GuardedStream,
        visit: Visit,
        upgrade: Upgrade,
        rest: bytes,
        service: Service,
        address: str,
        one: Pass,
    ) -> None:
        """Serves one from its handshake on; the caller closes the stream.

        Args:
            guard: The connection, its request head read.
            visit: Its place in the lobby, left at WELCOME.
            upgrade: What the head asks for.
            rest: What came behind the head.
            service: What it is let in to.
            address: Of the peer, for the log.
            one: Whose it is.
        """
        guard.replay(canonical_head(upgrade), rest)
        account = self._house.gate.accounts.of(one.tenant)
        account.connections += 1
        self.open += 1
        config = self._house.config
        try:
            async with trio.open_nursery() as library:
                with trio.fail_after(config.handshake_timeout_s):
                    request = await wrap_server_stream(
                        library,
                        guard,
                        message_queue_size=_LIBRARY_QUEUE,
                        max_message_size=longest_packed(config.max_message_bytes),
                        receive_buffer_size=_LIBRARY_READ_BYTES,
                    )
                    websocket = await request.accept(subprotocol=upgrade.subprotocol)
                guard.note_accepted()
                self.upgraded += 1
                connection = Connection(
                    Role.SERVER,
                    upgrade.subprotocol,
                    max_message_bytes=config.max_message_bytes,
                    max_streams=config.max_streams,
                )
                peer = Peer(
                    websocket,
                    guard,
                    connection,
                    service.admission,
                    service.requests,
                    service.registry,
                    account=account,
                    config=config,
                    is_canary=upgrade.is_canary,
                    on_welcome=visit.leave,
                )
                self._peers[peer] = one
                self._connections.add(connection)
                self.heartbeats.watch(peer)
                if self._house.is_draining:  # it began after this one was decided on
                    peer.go_away(_SHUTTING_DOWN.reason, 0)
                if self._is_broken_off:
                    _break_off(peer)
                farewell: Farewell | None = None
                try:
                    farewell = await peer.run()
                except Exception:
                    farewell = Farewell(CloseCode.INTERNAL_ERROR, "a bug in the server, see its log")
                    raise
                finally:
                    del self._peers[peer]
                    self._connections.remove(connection)
                    self._past.add(connection)
                    self.heartbeats.forget(peer)
                    evicted = visit.scope.cancel_called
                    farewell = farewell or (_CROWDED_OUT if evicted else _SHUTTING_DOWN)  # cancelled
                    self.closes[_close_label(farewell.code)] += 1
                    _log.info("peer left", address=address, code=int(farewell.code), reason=farewell.reason)
                    # Shielded, with a deadline: a server that is being cancelled still says goodbye.
                    patience_s = _EVICTED_CLOSE_S if evicted else config.close_timeout_s
                    with trio.move_on_after(patience_s, shield=True):
                        await websocket.aclose(farewell.code, farewell.reason or None)
                    library.cancel_scope.cancel()  # its reader may wait for ever; nobody waits for it
        finally:
            self.open -= 1
            account.connections -= 1
            self._left.set()


def _break_off(peer: Peer) -> None:
    peer.leave(ErrorCode.ENGINE_FAILED, "the engine failed: try again elsewhere", _ENGINE_FAILED)


def _close_label(code: int) -> str:
    """The code, where the protocol or the RFC has it: a client may say any of thousands."""
    return str(int(code)) if code in _KNOWN_CODES else "other"

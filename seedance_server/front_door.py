"""One port: a WebSocket upgrade on the chat path becomes a peer, anything else gets one HTTP answer.

Every connection runs in here from accept to close, contained: it has its own nursery, each of its waits is
bounded, and whatever it or the WebSocket library raises ends this connection and no other. The library is
only ever handed a guarded stream and a request head of our own making; it is never waited for when a
connection ends.

It must not know what is said over a WebSocket.
"""

from __future__ import annotations

import structlog
import trio
from attrs import define, frozen
from trio_websocket import ConnectionClosed, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import BadRequestHead
from seedance_server.gate import Gate, Pass
from seedance_server.guard import GuardedStream, GuardLimits
from seedance_server.heartbeats import Heartbeats
from seedance_server.journal.interface import Journal
from seedance_server.lobby import Lobby, Visit
from seedance_server.peer import Farewell, Peer
from seedance_server.request_head import RequestHead, read_head
from seedance_server.requests import Requests
from seedance_server.session_registry import SessionRegistry
from seedance_server.upgrade import HttpAnswer, Upgrade, canonical_head, check_upgrade
from seedance_server.watchdog import Watchdog
from seedance_wire.connection import Connection
from seedance_wire.errors import CloseCode
from seedance_wire.messages import ErrorCode
from seedance_wire.state import Role

__all__ = ["CHAT_PATH", "ERROR_HEADER", "FrontDoor", "FrontDoorStatistics", "Service"]

_log = structlog.get_logger(__name__)

CHAT_PATH = "/v1/chat"
_READ_METHODS = ("GET", "HEAD")
_RETRY_AFTER = ("Retry-After", "1")
ERROR_HEADER = "Seedance-Error"
"""Header of an HTTP answer that refuses new work; its value is that of an `ErrorCode`."""
_TENANT_FULL = HttpAnswer(
    429,
    "all connections of this tenant are in use",
    (("Retry-After", "5"), (ERROR_HEADER, ErrorCode.RATE_LIMITED.value)),
)
"""One of its own must be closed first, which the client can do at once: a few seconds, picked."""
_CROWDED = (_RETRY_AFTER, (ERROR_HEADER, ErrorCode.OVERLOADED.value))
_LIBRARY_READ_BYTES = 4096
"""What the WebSocket library reads at once: a tiny frame costs it about 8 µs, 64 KiB of them would stall the
loop for 87 ms."""
_LIBRARY_QUEUE = 8
"""Messages that the library holds for the reader, which never makes them wait for long."""


_EXPECTED = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    ConnectionClosed,
    LocalProtocolError,  # the library answers a ping that crossed our close
)
"""What a peer that leaves, stalls or breaks a bound looks like; everything else is worth a warning."""
_LIBRARIES = {"trio_websocket", "wsproto", "h11"}
_EVICTED_CLOSE_S = 0.1
"""Time for the last word to a connection that gives way: it goes into an empty buffer, or not at all."""


_CROWDED_OUT = Farewell(CloseCode.TRY_AGAIN_LATER, "too many connections that have said nothing")
_SHUTTING_DOWN = Farewell(CloseCode.GOING_AWAY, "the server is shutting down")
_KEY_REVOKED = Farewell(CloseCode.UNAUTHENTICATED, "the key opens nothing any more")


@frozen(kw_only=True)
class Service:
    """What a connection is let in to.

    Attributes:
        admission: Decides on requests.
        engine_loop: Where they run.
        journal: Where they are kept.
        requests: Makes streams of them.
        registry: Where sessions are.
        watchdog: Says whether all that works.
    """

    admission: Admission
    engine_loop: EngineLoop
    journal: Journal
    requests: Requests
    registry: SessionRegistry
    watchdog: Watchdog


@define
class FrontDoorStatistics:
    """Counts since the start, and what is open now.

    Attributes:
        connections: Connections taken.
        upgraded: Those that became WebSockets.
        refused: Those that got an HTTP answer other than 200.
        contained: Connections that ended by an exception which should not have been.
        websockets: WebSockets open.
        lobby: Connections open that haven't been welcomed.
    """

    connections: int = 0
    upgraded: int = 0
    refused: int = 0
    contained: int = 0
    websockets: int = 0
    lobby: int = 0


class FrontDoor:
    """Serves connections.

    It starts closed (503 to new work), is opened once the model can answer, and drained at the end.

    Args:
        config: Limits and origins.
        gate: Who may come in.
    """

    def __init__(self, config: Config, gate: Gate) -> None:
        self._config = config
        self._gate = gate
        gate.on_change = self._show_out
        self._service: Service | None = None
        self._draining = False
        self._peers: dict[Peer, Pass] = {}
        self._websockets = 0
        self.heartbeats = Heartbeats(config.heartbeat_s, config.heartbeat_timeout_s)
        self._last_left = trio.Event()
        self._counts = FrontDoorStatistics()
        self.lobby = Lobby(config.max_unauthenticated, config.max_unauthenticated_per_address)

    def open(self, service: Service) -> None:
        """Lets clients in from now on."""
        self._service = service

    def trouble(self) -> str | None:
        """Why no new work is taken, one line, or None: what readiness says."""
        if self._draining:
            return "draining"
        if self._service is None:
            return "loading the model"
        return self._service.watchdog.trouble()

    def statistics(self) -> FrontDoorStatistics:
        """Counts so far; the object is live but for the gauges, which are taken now."""
        self._counts.websockets = self._websockets
        self._counts.lobby = self.lobby.visits
        return self._counts

    async def drain(self, timeout_s: float) -> None:
        """Takes no more work and lets streams go on for ``timeout_s``; the rest waits in the journal.

        Streams without durability end with a retryable error instead. Returns once every WebSocket is closed,
        at the latest ``timeout_s`` plus two close timeouts from now.
        """
        self._draining = True
        if self._service is not None:
            self._service.admission.drain()
        for peer in tuple(self._peers):
            peer.go_away("the server is shutting down", int(timeout_s * 1000))
        if await self._all_left(timeout_s):
            return
        for peer in tuple(self._peers):
            peer.leave("the server is shutting down: go elsewhere")
        await self._all_left(2 * self._config.close_timeout_s)

    def _show_out(self) -> None:
        """Closes the connections whose key opens nothing any more; their streams wait in the journal."""
        for peer, one in tuple(self._peers.items()):
            if not self._gate.holds(one):
                peer.end(_KEY_REVOKED)

    async def _all_left(self, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while self._websockets:
                self._last_left = trio.Event()
                await self._last_left.wait()
        return not self._websockets

    async def serve_stream(self, transport: trio.abc.Stream, visit: Visit, address: str) -> None:
        """Serves one connection to its end and closes it, whatever happens.

        Args:
            transport: The connection; owned from here on.
            visit: Its place in the lobby, entered when it was accepted.
            address: Of the peer, for the log.
        """
        self._counts.connections += 1
        guard = GuardedStream(transport, self._guard_limits())
        try:
            with visit.scope:
                await self._serve_request(guard, visit, address)
            if not visit.scope.cancelled_caught:
                await guard.aclose()
        except* _EXPECTED as group:
            _log.debug("connection cut", address=address, reason=repr(group.exceptions[0]))
        except* Exception as group:  # noqa: BLE001 - contained here, so that it ends this connection only
            self._counts.contained += 1
            _log_contained(group, address)
        finally:
            visit.leave()
            await guard.abort()

    def _guard_limits(self) -> GuardLimits:
        config = self._config
        return GuardLimits(
            # Beyond a head of the largest size there may be an impatient first message, never a flood.
            before_accept_bytes=config.max_head_bytes + 3_616,
            between_messages_bytes=2 * config.max_message_bytes + 65_536,
            bytes_per_second=config.receive_bytes_per_second,
            burst_bytes=config.receive_burst_bytes,
            send_timeout_s=config.send_timeout_s,
            linger_s=config.close_timeout_s / 2,
            linger_bytes=4 * config.max_message_bytes,
        )

    async def _serve_request(self, guard: GuardedStream, visit: Visit, address: str) -> None:
        head: RequestHead | None = None
        decision: HttpAnswer | Upgrade
        one = Pass("", None)
        try:
            if visit.crowded:
                decision = HttpAnswer(429, "too many connections at once from this address", _CROWDED)
            else:
                with trio.fail_after(self._config.handshake_timeout_s):
                    head = await read_head(guard, max_bytes=self._config.max_head_bytes)
                if head is None:
                    return
                decision = self._decide(head)
                if isinstance(decision, Upgrade):
                    admitted = self._let_in(head, address)
                    if isinstance(admitted, HttpAnswer):
                        decision = admitted
                    else:
                        one = admitted
        except BadRequestHead as error:
            decision = HttpAnswer(error.status, error.reason)
        except trio.TooSlowError:
            decision = HttpAnswer(408, "the request didn't arrive in time")
        if isinstance(decision, Upgrade):
            assert head is not None  # noqa: S101 - both were there for the decision
            assert self._service is not None  # noqa: S101
            guard.replay(canonical_head(decision), head.rest)
            await self._serve_websocket(guard, visit, decision.subprotocol, self._service, address, one)
            return
        if decision.status != 200:
            self._counts.refused += 1
            _log.info("request refused", address=address, status=decision.status, reason=decision.body)
        with trio.move_on_after(self._config.close_timeout_s):
            await guard.send_all(decision.encode(with_body=head is None or head.method != "HEAD"))

    def _decide(self, head: RequestHead) -> HttpAnswer | Upgrade:
        if head.path in {"/healthz", "/readyz"}:
            if head.method not in _READ_METHODS:
                return HttpAnswer(405, "only GET and HEAD", (("Allow", "GET, HEAD"),))
            trouble = self.trouble() if head.path == "/readyz" else None
            return HttpAnswer(200, "ok") if trouble is None else self._unavailable(trouble)
        if head.path != CHAT_PATH:
            return HttpAnswer(404, f"nothing here; the service is at {CHAT_PATH}")
        return check_upgrade(head, wants_key=self._gate.wants_key, allow_origins=self._config.allow_origins)

    def _let_in(self, head: RequestHead, address: str) -> Pass | HttpAnswer:
        """Decides on a good request: whose is it, and is there room? No checkpoint from here to its place."""
        one = self._gate.admit(head.get("authorization"), address)
        if isinstance(one, HttpAnswer):
            return one
        trouble = self.trouble()
        if trouble is None and self._websockets >= self._config.max_connections:
            trouble = "all connections are in use"
        if trouble is not None:
            return self._unavailable(trouble)
        if not self._gate.accounts.of(one.tenant).has_room_for_connection:
            return _TENANT_FULL
        return one

    def _unavailable(self, trouble: str) -> HttpAnswer:
        """503, with the same word for it that REFUSED would have."""
        code = ErrorCode.DRAINING if self._draining else ErrorCode.OVERLOADED
        return HttpAnswer(503, trouble, (_RETRY_AFTER, (ERROR_HEADER, code.value)))

    async def _serve_websocket(
        self,
        guard: GuardedStream,
        visit: Visit,
        subprotocol: str,
        service: Service,
        address: str,
        one: Pass,
    ) -> None:
        config = self._config
        account = self._gate.accounts.of(one.tenant)
        account.connections += 1
        self._websockets += 1
        try:
            async with trio.open_nursery() as library:
                with trio.fail_after(config.handshake_timeout_s):
                    request = await wrap_server_stream(
                        library,
                        guard,
                        message_queue_size=_LIBRARY_QUEUE,
                        max_message_size=config.max_message_bytes,
                        receive_buffer_size=_LIBRARY_READ_BYTES,
                    )
                    websocket = await request.accept(subprotocol=subprotocol)
                guard.note_accepted()
                self._counts.upgraded += 1
                connection = Connection(
                    Role.SERVER,
                    subprotocol,
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
                    on_welcome=visit.leave,
                )
                self._peers[peer] = one
                self.heartbeats.watch(peer)
                if self._draining:  # it began after this one was decided on
                    peer.go_away("the server is shutting down", 0)
                farewell: Farewell | None = None
                try:
                    farewell = await peer.run()
                except Exception:
                    farewell = Farewell(CloseCode.INTERNAL_ERROR, "a bug in the server, see its log")
                    raise
                finally:
                    del self._peers[peer]
                    self.heartbeats.forget(peer)
                    evicted = visit.scope.cancel_called
                    farewell = farewell or (_CROWDED_OUT if evicted else _SHUTTING_DOWN)  # cancelled
                    _log.info("peer left", address=address, code=int(farewell.code), reason=farewell.reason)
                    # Shielded, with a deadline: a server that is being cancelled still says goodbye.
                    patience_s = _EVICTED_CLOSE_S if evicted else config.close_timeout_s
                    with trio.move_on_after(patience_s, shield=True):
                        await websocket.aclose(farewell.code, farewell.reason or None)
                    library.cancel_scope.cancel()  # its reader may wait for ever; nobody waits for it
        finally:
            self._websockets -= 1
            account.connections -= 1
            self._last_left.set()


def _log_contained(group: BaseExceptionGroup[BaseException], address: str) -> None:
    """A traceback for what may be a bug of ours; one line for what the library raised in its own code."""
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    trace = leaf.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    if module.partition(".")[0] in _LIBRARIES:
        _log.warning("connection contained", address=address, reason=repr(leaf))
        _log.debug("where it was raised", address=address, exc_info=group)
    else:
        _log.warning("connection contained", address=address, exc_info=group)

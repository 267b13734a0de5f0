"""One port: a WebSocket upgrade on the chat path becomes a peer, anything else is HTTP's.

Every connection runs in here from accept to close, contained: each of its waits is bounded, and whatever it
or a library raises ends this connection and no other. Both sides are only ever handed a guarded stream and a
request head that was parsed here; both ask the same house, and count against the same bounds.

It must not know what is said over either.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import trio
from attrs import define, field
from prometheus_client import CollectorRegistry
from trio_websocket import ConnectionClosed
from wsproto.utilities import LocalProtocolError

from seedance_server.config import Config
from seedance_server.errors import BadRequestHead
from seedance_server.gate import Gate, Pass
from seedance_server.guard import GuardedStream, GuardLimits
from seedance_server.house import House, Service
from seedance_server.http.app import build_app
from seedance_server.http.refusal import ERROR_HEADER
from seedance_server.http.side import HttpSide
from seedance_server.lobby import Lobby, Visit
from seedance_server.metrics.exposition import Metrics
from seedance_server.metrics.state import Serving, StateCollector
from seedance_server.proxies import TrustedProxies
from seedance_server.request_head import RequestHead, read_head
from seedance_server.request_log import RequestLog
from seedance_server.request_watch import Observer
from seedance_server.tls import Tls, TlsStatistics
from seedance_server.tracing import Traces, TraceStatistics
from seedance_server.upgrade import CHAT_PATH, HttpAnswer, Upgrade, check_upgrade, ticket_of
from seedance_server.websockets import WebSockets
from seedance_wire.messages import ErrorCode

__all__ = ["CHAT_PATH", "ERROR_HEADER", "FrontDoor", "FrontDoorStatistics", "Service"]

_log = structlog.get_logger(__name__)

_RETRY_AFTER = ("Retry-After", "1")
_TENANT_FULL = HttpAnswer(
    429,
    "all connections of this tenant are in use",
    (("Retry-After", "5"), (ERROR_HEADER, ErrorCode.RATE_LIMITED.value)),
)
"""One of its own must be closed first, which the client can do at once: a few seconds, picked."""
_CROWDED = (_RETRY_AFTER, (ERROR_HEADER, ErrorCode.OVERLOADED.value))


_EXPECTED = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    ConnectionClosed,
    LocalProtocolError,  # the library answers a ping that crossed our close
)
"""What a peer that leaves, stalls or breaks a bound looks like; everything else is worth a warning."""
_LAST_WORD_S = 0.5
"""What an answer over HTTP that has just ended with an error gets to be sent; picked."""
_LIBRARIES = {"trio_websocket", "wsproto", "h11"}


@define
class FrontDoorStatistics:
    """Counts since the start, and what is open now.

    Attributes:
        connections: Connections taken.
        upgraded: Those that became WebSockets.
        requests: HTTP requests on the others.
        refused: Connections and requests that were turned away at the door.
        contained: Connections that ended by an exception which should not have been.
        refusals: Those that were turned away, by reason.
        closes: WebSockets that are over, by close code.
        travelled: Bytes of WebSocket messages, by direction.
        plain: The same without compression.
        websockets: WebSockets open.
        http: Connections open on which HTTP requests were let in.
        lobby: Connections open that haven't been welcomed.
    """

    connections: int = 0
    upgraded: int = 0
    requests: int = 0
    refused: int = 0
    contained: int = 0
    refusals: Mapping[str, int] = field(factory=dict)
    closes: Mapping[str, int] = field(factory=dict)
    travelled: Mapping[str, int] = field(factory=dict)
    plain: Mapping[str, int] = field(factory=dict)
    websockets: int = 0
    http: int = 0
    lobby: int = 0


class FrontDoor:
    """Serves connections.

    It starts closed (503 to new work), is opened once the model can answer, and drained at the end.

    Args:
        config: Limits and origins.
        gate: Who may come in.
        registry: Where metrics are registered; None for one of its own.
        traces: Where spans go; None for nowhere.
        tls: What encrypts its connections; None for plain ones.

    Attributes:
        house: What is behind it.
        heartbeats: Asks silent clients for a sign of life.
        lobby: Where a connection is before it has proved anything.
        observers: Who is to watch requests.
    """

    def __init__(
        self,
        config: Config,
        gate: Gate,
        registry: CollectorRegistry | None = None,
        traces: Traces | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._config = config
        self._gate = gate
        self._proxies = TrustedProxies(config.trusted_proxies)
        gate.on_change = self._show_out
        self.house = House(config, gate, Metrics(registry or CollectorRegistry()))
        self._counts = FrontDoorStatistics()
        self._websockets = WebSockets(self.house)
        self._http = HttpSide(self.house, build_app(self.house), self._let_in)
        self.heartbeats = self._websockets.heartbeats
        self.lobby = Lobby(
            config.max_unauthenticated, config.max_unauthenticated_per_address, self._proxies.trusts
        )
        self._state = StateCollector(
            door=self.statistics,
            heartbeats=self.heartbeats.statistics,
            accounts=gate.accounts,
            readiness=self.house.readiness,
            outcomes=self.house.metrics.requests.outcomes,
            traces=TraceStatistics if traces is None else traces.statistics,
            tls=TlsStatistics if tls is None else tls.statistics,
            most_tenants=config.metrics_tenants,
        )
        self.house.metrics.read(self._state)
        observers: tuple[Observer, ...] = (self.house.metrics.requests, RequestLog())
        self.observers = observers if traces is None else (*observers, traces)

    def open(self, service: Service) -> None:
        """Lets clients in from now on."""
        self.house.service = service
        self._state.serving = Serving(
            admission=service.admission,
            engine_loop=service.engine_loop,
            journal=service.journal,
            registry=service.registry,
            watchdog=service.watchdog,
        )

    def statistics(self) -> FrontDoorStatistics:
        """Counts so far, as of now."""
        counts = self._counts
        counts.upgraded = self._websockets.upgraded
        counts.websockets = self._websockets.open
        counts.requests, counts.http = self._http.requests, self._http.open
        counts.refusals, counts.closes = self.house.refusals, self._websockets.closes
        counts.refused = self.house.refusals.total()
        carried = self._websockets.carried()
        counts.travelled, counts.plain = carried.travelled, carried.plain
        counts.lobby = self.lobby.visits
        return counts

    async def drain(self, timeout_s: float) -> None:
        """Takes no more work and lets streams go on for ``timeout_s``; the rest waits in the journal.

        Streams without durability end with a retryable error instead. Returns once every connection is
        closed, at the latest ``timeout_s`` plus two close timeouts from now.
        """
        self.house.is_draining = True
        if self.house.service is not None:
            self.house.service.admission.drain()
        self._websockets.go_away(int(timeout_s * 1000))
        self._http.go_away()
        if await self._all_left(timeout_s):
            return
        self._websockets.leave()
        self._http.leave()
        await self._all_left(2 * self._config.close_timeout_s)

    async def break_off(self) -> None:
        """Closes all connections, since the engine has failed; their streams wait in the journal.

        Streams without durability end with a retryable error instead. Returns once every connection is
        closed, at the latest two close timeouts from now and a little.
        """
        self._websockets.break_off()
        self._http.go_away()
        if await self._all_left(_LAST_WORD_S):
            return
        self._http.leave()
        await self._all_left(2 * self._config.close_timeout_s)

    def _show_out(self) -> None:
        self._websockets.show_out()
        self._http.show_out()

    async def _all_left(self, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s) as patience:
            await self._websockets.wait_all_left()
            await self._http.wait_all_left()
        return not patience.cancelled_caught

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
        try:
            if visit.crowded:
                answer = HttpAnswer(429, "too many connections at once from this address", _CROWDED)
            else:
                with trio.fail_after(self._config.handshake_timeout_s):
                    head = await read_head(guard, max_bytes=self._config.max_head_bytes)
                if head is not None and head.path != CHAT_PATH:
                    head = await self._http.serve(guard, visit, head, address)
                if head is None:
                    return
                refusal = await self._serve_upgrade(guard, visit, head, address)
                if refusal is None:
                    return
                answer = refusal
        except BadRequestHead as error:
            answer = HttpAnswer(error.status, error.reason)
        except trio.TooSlowError:
            answer = HttpAnswer(408, "the request didn't arrive in time")
        self.house.note_refused(answer)
        _log.info("request refused", address=address, status=answer.status, reason=answer.body)
        with trio.move_on_after(self._config.close_timeout_s):
            await guard.send_all(answer.encode(with_body=head is None or head.method != "HEAD"))

    async def _serve_upgrade(
        self, guard: GuardedStream, visit: Visit, head: RequestHead, address: str
    ) -> HttpAnswer | None:
        """Serves a WebSocket to its end; returns why it didn't become one, if it didn't."""
        address = self._proxies.client_of(address, head.values("x-forwarded-for"))
        decision = check_upgrade(
            head, wants_key=self._gate.wants_key, allow_origins=self._config.allow_origins
        )
        if not isinstance(decision, Upgrade):
            return decision
        one = self._let_in(head, address, is_new=True, ticket=ticket_of(head))
        if isinstance(one, HttpAnswer):
            return one
        assert self.house.service is not None  # noqa: S101 - or it wouldn't have been let in
        await self._websockets.serve(guard, visit, decision, head.rest, self.house.service, address, one)
        return None

    def _let_in(
        self, head: RequestHead, address: str, is_new: bool, ticket: str | None = None
    ) -> Pass | HttpAnswer:
        """Decides on a good request: whose is it, and is there room? No checkpoint from here to its place."""
        address = self._proxies.client_of(address, head.values("x-forwarded-for"))
        one = self._gate.admit(head.get("authorization"), address, ticket=ticket)
        if isinstance(one, HttpAnswer):
            return one
        trouble = self.house.readiness().barred
        if trouble is None and is_new and self._open >= self._config.max_connections:
            trouble = "all connections are in use"
        if trouble is not None:
            return self._unavailable(trouble)
        if not self._gate.accounts.of(one.tenant).has_room_for_connection:
            return _TENANT_FULL
        return one

    @property
    def _open(self) -> int:
        return self._websockets.open + self._http.open

    def _unavailable(self, trouble: str) -> HttpAnswer:
        """503, with the same word for it that REFUSED would have."""
        return HttpAnswer(503, trouble, (_RETRY_AFTER, (ERROR_HEADER, self.house.refusal_code.value)))


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

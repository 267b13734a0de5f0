"""A server in memory with answers written beforehand, for tests of programs that use this package.

    server = ScriptedServer(Answer("Hel", Cut(), "lo"), Refusal(ErrorCode.OVERLOADED))
    client = SeedanceClient(connector=server)

It speaks the real protocol through the server's half of `seedance_wire`, window, sessions and resumption
included, over the same seam as a WebSocket; only the network and the model are left out. It works in both
clients, and with a virtual clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio

from seedance_sdk.causes import error_of_status
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import ConnectFailed
from seedance_sdk.limits import Limits
from seedance_sdk.memory_transport import MemoryTransport, MemoryWire
from seedance_sdk.script import Answer, Cut, Refusal
from seedance_sdk.scripted_peer import ScriptedPeer
from seedance_sdk.scripted_session import ScriptedSession
from seedance_sdk.transport import Transport
from seedance_wire.messages import (
    Accepted,
    Ack,
    ErrorCode,
    Event,
    FinishReason,
    Flow,
    FlowAction,
    GoAway,
    Hello,
    Phase,
    Refused,
    Status,
    Submit,
    UserEvent,
)
from seedance_wire.messages import Limits as ServerLimits

__all__ = [
    "Answer",
    "Cut",
    "ErrorCode",
    "FinishReason",
    "Flow",
    "FlowAction",
    "Phase",
    "Refusal",
    "ScriptedServer",
    "Status",
]


class ScriptedServer:
    """Gives each request the next item of its script, and refuses what comes after the last.

    Pass it as ``connector`` to a client. One server takes any number of connections, one after the other or
    at once; all of them share the script and the records. Sessions and streams survive their connections
    until the server forgets them: a client that comes back resumes. A stream goes on only while its client
    is connected.

    Args:
        *script: An item for each request, in the order of their arrival.
        respond: Decides by the request instead, where the order is not known.
        refuse_status: Refuse every upgrade with this HTTP status.
        durable: Whether streams survive their connection, where the request does not say.
        max_streams: Streams that it allows on a connection.

    Attributes:
        requests: Every SUBMIT, as it came.
        endpoints: Who connected, in order: address and headers.
        cancelled: The stream ids that were cancelled.
        acks: Every ACK with the time of its arrival, on trio's clock.
        reports: Every event that was reported and taken, in order.
        refuse_reports: Refuse reports with this, from now on; None to take them.
        connections: How many are open now.
        refuse_status: Refuse upgrades with this HTTP status, from now on; None to take them.
        retry_after_ms: The time that goes with it, in milliseconds.
        durable: As given.
    """

    def __init__(
        self,
        *script: Answer | Refusal,
        respond: Callable[[Submit], Answer | Refusal] | None = None,
        refuse_status: int | None = None,
        durable: bool = True,
        max_streams: int = 64,
    ) -> None:
        self.requests: list[Submit] = []
        self.endpoints: list[Endpoint] = []
        self.cancelled: list[int] = []
        self.acks: list[tuple[float, Ack]] = []
        self.reports: list[UserEvent] = []
        self.refuse_reports: Refusal | None = None
        self.connections = 0
        self._script = list(script)
        self._respond = respond
        self.refuse_status = refuse_status
        self.retry_after_ms: int | None = None
        self.durable = durable
        self._max_streams = max_streams
        self._peers: dict[ScriptedPeer, trio.lowlevel.TrioToken] = {}
        self._sessions: dict[str, tuple[ScriptedSession, ScriptedPeer]] = {}
        self._begun = 0
        self._up = True

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        """Connects; see `seedance_sdk.transport.Connector`."""
        self.endpoints.append(endpoint)
        await trio.lowlevel.checkpoint()
        if not self._up:
            raise ConnectFailed(f"cannot connect to {endpoint.url}: the server is stopped")
        if self.refuse_status is not None:
            raise error_of_status(self.refuse_status, "refused by the script", self.retry_after_ms)
        wire = MemoryWire()
        peer = ScriptedPeer(self, wire, endpoint.subprotocol, limits)
        failure: Exception | None = None
        self._peers[peer] = trio.lowlevel.current_trio_token()
        self.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                try:
                    yield MemoryTransport(wire)
                except Exception as error:  # noqa: BLE001 - carried around the nursery: it would wrap it
                    failure = error
                finally:
                    wire.at_client.close()  # whatever is being sent
                nursery.cancel_scope.cancel()
        finally:
            del self._peers[peer]
            self.connections -= 1
        if failure is not None:
            raise failure

    async def go_away(self, reason: str = "the script says so", *, reconnect_to: str | None = None) -> None:
        """Says GOAWAY on every open connection; call it where the client runs."""
        for peer in list(self._peers):
            await peer.say(GoAway(reason=reason, reconnect_to=reconnect_to))

    def close(self, code: int = 1006, reason: str = "") -> None:
        """Closes every open connection with ``code``; from another thread than the client's, soon."""
        for peer, token in list(self._peers.items()):
            if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
                peer.close(code, reason)
            else:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(peer.close, code, reason)

    def cut(self) -> None:
        """Cuts every open connection without a goodbye; from any thread, as `close`."""
        self.close(1006, "cut by the script")

    def stop(self) -> None:
        """Stops the server as a kill does: connections are cut, and new ones refused."""
        self._up = False
        self.cut()

    def start(self, *, forget: bool = False) -> None:
        """Starts it again.

        Args:
            forget: Without the sessions and streams that it had.
        """
        self._up = True
        if forget:
            self._sessions.clear()

    def restart(self, *, forget: bool = False) -> None:
        """Stops and starts it at once."""
        self.stop()
        self.start(forget=forget)

    # ---- what its connections ask

    def limits(self, max_message_bytes: int) -> ServerLimits:
        """What WELCOME says."""
        return ServerLimits(
            max_message_bytes=max_message_bytes, max_streams=self._max_streams, max_context_tokens=8192
        )

    def attach(self, hello: Hello, peer: ScriptedPeer) -> tuple[ScriptedSession, bool]:
        """The session that a client is in from now on, and whether it is the one that it named."""
        session, former = self._sessions.get(hello.session_id or "", (None, None))
        present = session is not None and session.resume_token == hello.resume_token
        if session is None or not present:
            self._begun += 1
            name = f"scripted-{self._begun}"
            token = hashlib.sha256(name.encode()).digest() if self.durable else b""
            session = ScriptedSession(id=name, resume_token=token)
        elif former is not None:
            former.close(4409, "a newer connection has the session")
        session.attach()
        self._sessions[session.id] = (session, peer)
        return session, present

    def answer(self, request: Submit) -> Answer | Refusal:
        """Records a request, and says what it gets."""
        self.requests.append(request)
        if self._respond is not None:
            return self._respond(request)
        if self._script:
            return self._script.pop(0)
        return Refusal(ErrorCode.INTERNAL, f"the script has no answer to request {len(self.requests)}")

    def known(self, request: Submit, session: ScriptedSession) -> Accepted | Refused | None:
        """What a request gets that was made in another session under the same key."""
        for other, peer in self._sessions.values():
            if other is session or request.idempotency_key not in other.answers:
                continue
            if peer in self._peers:
                return Refused(
                    sequence_id=request.sequence_id,
                    code=ErrorCode.OVERLOADED,
                    message="another connection has the stream of this request",
                    retryable=True,
                )
            return session.take_along(other, request.idempotency_key)
        return None

    def note_cancel(self, stream_id: int) -> None:
        """Records a CANCEL."""
        self.cancelled.append(stream_id)

    def note_ack(self, ack: Ack) -> None:
        """Records an ACK."""
        self.acks.append((trio.current_time(), ack))

    def take_report(self, report: Event) -> Refusal | None:
        """Records reported events, or says why not."""
        if self.refuse_reports is None:
            self.reports += report.events
        return self.refuse_reports

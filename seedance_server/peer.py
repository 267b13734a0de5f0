"""One live WebSocket: a reader that never blocks on work, and one writer that owns the socket.

The reader turns bytes into events and hands each to the attachment, which never makes it wait; so acks,
cancels, pings and closes are handled while data is held back. The writer takes batches from the outbox, the
only way out. Whoever breaks the protocol is closed with its code, after what was already said has left.
Nothing in here outlives the peer, and no failure in here is anybody else's; the session does, elsewhere.

It must not know HTTP, nor what a generation is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog
import trio
from attrs import frozen
from structlog.contextvars import bind_contextvars
from trio_websocket import ConnectionClosed, WebSocketConnection

from seedance_server import __version__
from seedance_server.accounts import Account
from seedance_server.admission import Admission
from seedance_server.attachment import Attachment
from seedance_server.config import Config
from seedance_server.errors import OutboxClosed, RequestRefused, SessionLost, Superseded
from seedance_server.guard import GuardedStream
from seedance_server.journal.errors import JournalError
from seedance_server.outbox import Batch, Outbox
from seedance_server.requests import Requests
from seedance_server.session_registry import SessionRegistry
from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.connection import Connection, InvalidSubmit
from seedance_wire.errors import CloseCode, LocalProtocolError, MessageTooLargeError, RemoteProtocolError
from seedance_wire.messages import (
    Ack,
    Bye,
    Cancel,
    ClientMessage,
    ErrorCode,
    Event,
    GoAway,
    Hello,
    Limits,
    Resume,
    ServerMessage,
    Submit,
    Welcome,
)
from seedance_wire.state import ConnectionState
from seedance_wire.token_bucket import TokenBucket

__all__ = ["Farewell", "Peer"]

_log = structlog.get_logger(__name__)


@frozen
class Farewell:
    """How a connection ends.

    Attributes:
        code: The close code that the peer gets, or got from its own side.
        reason: In words; short, since a close frame holds 123 bytes.
    """

    code: int
    reason: str = ""


_SILENT = (ConnectionState.CLOSED, ConnectionState.ERROR)
"""After BYE and after a violation nothing may be said but the close."""

_PACE_S = 1.0
"""Longest sleep for bandwidth: a quota that was raised meanwhile is noticed."""
_GONE = Farewell(CloseCode.ABNORMAL, "the peer is gone")
_GOING_AWAY = Farewell(CloseCode.GOING_AWAY, "the server is shutting down")


class Peer:
    """Serves one accepted WebSocket.

    Args:
        websocket: Accepted; the caller closes it with what `run` returns.
        guard: The stream under it.
        connection: The protocol's state, server role.
        admission: Decides on requests.
        requests: Makes streams of them.
        registry: Where sessions are.
        account: Of the tenant whose connection it is.
        config: Limits.
        is_canary: Whether its requests are marked, to be looked at apart.
        on_welcome: Called once HELLO has been answered.
    """

    def __init__(
        self,
        websocket: WebSocketConnection,
        guard: GuardedStream,
        connection: Connection,
        admission: Admission,
        requests: Requests,
        registry: SessionRegistry,
        *,
        account: Account,
        config: Config,
        is_canary: bool = False,
        on_welcome: Callable[[], None],
    ) -> None:
        self._websocket = websocket
        self._guard = guard
        self._connection = connection
        self._admission = admission
        self._requests = requests
        self._registry = registry
        self._account = account
        self._config = config
        self._is_canary = is_canary
        self._on_welcome = on_welcome
        self._outbox = Outbox(
            frame_bytes=config.outbox_bytes,
            control_messages=config.outbox_control_messages,
            batch_bytes=config.batch_bytes,
        )
        now_s = trio.current_time()
        self._messages = TokenBucket(config.messages_per_second, config.message_burst, now_s)
        self._acks = TokenBucket(config.acks_per_second, config.message_burst, now_s)
        self._attachment: Attachment | None = None
        self._reading = trio.CancelScope()
        self._farewell: Farewell | None = None
        self._parting: Farewell | None = None

    # ---- told by the front door

    def go_away(self, reason: str, deadline_ms: int) -> None:
        """Tells the client to go elsewhere; the connection closes once its last stream has ended."""
        self._parting = _GOING_AWAY
        if self._attachment is None:
            self._end(Farewell(CloseCode.GOING_AWAY, reason))
            return
        try:
            elsewhere = self._config.reconnect_to
            self._outbox.put_control(GoAway(reason=reason, deadline_ms=deadline_ms, reconnect_to=elsewhere))
        except OutboxClosed:
            return
        self._close_if_idle()

    @property
    def heard_s(self) -> float:
        """When a byte last came; see `Patient`."""
        return self._guard.heard_s

    async def beat(self, payload: bytes) -> None:
        """Asks the client for a sign of life; see `Patient`."""
        with suppress(ConnectionClosed):
            await self._websocket.ping(payload)

    def pronounce_dead(self) -> None:
        """Nobody is there; see `Patient`."""
        self._end(Farewell(CloseCode.TIMED_OUT, "no sign of life"))

    def end(self, farewell: Farewell) -> None:
        """Closes the connection; its streams wait for another one."""
        self._end(farewell)

    def leave(self, code: ErrorCode, message: str, farewell: Farewell = _GOING_AWAY) -> None:
        """Ends the streams that live with the connection, with a retryable ERROR; the others stay.

        Args:
            code: What kind of error it is.
            message: The same in words.
            farewell: How the connection closes once that has been said.
        """
        self._parting = farewell
        if self._attachment is None:
            self._end(farewell)
            return
        self._attachment.leave(code, message)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._parting is not None and self._attachment is not None and self._attachment.is_idle:
            self._end(self._parting)

    def _end_with(self, code: CloseCode, reason: str) -> None:
        self._end(Farewell(code, reason))

    def _end(self, farewell: Farewell) -> None:
        """The first reason to end is the one that is told."""
        self._farewell = self._farewell or farewell
        self._reading.cancel()

    # ---- its own tasks

    async def run(self) -> Farewell:
        """Serves until one side ends it; what was already put has left then, or the socket is dead."""
        async with trio.open_nursery() as writing:
            written = trio.Event()
            writing.start_soon(self._write, written)
            async with trio.open_nursery() as requests:
                try:
                    with self._reading:
                        self._end(await self._read(requests))
                finally:  # however it ended: a session must not be held by nobody
                    if self._attachment is not None:
                        self._attachment.close()
                requests.cancel_scope.cancel()  # cut off, or done: nobody is left to stream to
            self._outbox.close()
            with trio.move_on_after(self._config.close_timeout_s):
                await written.wait()
            writing.cancel_scope.cancel()
        assert self._farewell is not None  # noqa: S101 - no way out of the block without one
        return self._farewell

    async def _read(self, requests: trio.Nursery) -> Farewell:
        try:
            return await self._converse(requests)
        except RemoteProtocolError as error:
            _log.info("protocol violated", reason=str(error))
            return Farewell(error.close_code, str(error))
        except _TooFast:
            return Farewell(CloseCode.QUOTA_EXCEEDED, "too many messages a second")
        except OutboxClosed:
            return Farewell(CloseCode.SLOW_READER, "answers aren't being read")
        except ConnectionClosed as closed:
            return _GONE if closed.reason is None else Farewell(closed.reason.code, "closed by the peer")

    async def _converse(self, requests: trio.Nursery) -> Farewell:
        with trio.move_on_after(self._config.handshake_timeout_s) as patience:
            hello = await self._next_event()
        if patience.cancelled_caught:
            return Farewell(CloseCode.TIMED_OUT, "no HELLO in time")
        assert isinstance(hello, Hello)  # noqa: S101 - the table allows nothing else
        try:
            attachment = await self._welcome(hello, requests)
        except Superseded:
            return Farewell(CloseCode.SUPERSEDED, "a newer connection has the session")
        except (SessionLost, JournalError) as error:
            _log.warning("no session for a connection", reason=str(error))
            return Farewell(CloseCode.TRY_AGAIN_LATER, "the journal can't serve just now")
        while True:
            event = await self._next_event()
            self._charge(event)
            if isinstance(event, Bye):
                attachment.bye()
                return Farewell(CloseCode.NORMAL)
            self._handle(attachment, event)

    async def _next_event(self) -> ClientMessage | InvalidSubmit:
        while (event := self._connection.next_event()) is None:
            data = await self._websocket.get_message()
            self._guard.note_message()
            self._connection.receive_data(data)
        return event  # type: ignore[return-value]  # the server's role only yields what clients send

    @property
    def _session_id(self) -> str | None:
        return None if self._attachment is None else self._attachment.session.id

    async def _welcome(self, hello: Hello, requests: trio.Nursery) -> Attachment:
        config = self._config
        capabilities = agreed_capabilities(
            hello.capabilities, self._connection.capabilities, compression=config.compression == "auto"
        )
        attachment = Attachment(
            nursery=requests,
            outbox=self._outbox,
            admission=self._admission,
            requests=self._requests,
            config=config,
            end=self._end_with,
            on_idle=self._close_if_idle,
        )
        entrance = await self._registry.enter(
            self._account.tenant.name, hello.session_id, hello.resume_token, attachment
        )
        # No checkpoint from here: what has the session is told to give it back when this connection ends.
        self._attachment = attachment
        entrance.session.is_canary = self._is_canary
        bind_contextvars(tenant=entrance.session.tenant, session=entrance.session.id)
        if entrance.is_present:
            self._connection.know_streams(entrance.last_stream_id)
        self._outbox.put_control(
            Welcome(
                session_id=entrance.session.id,
                epoch=entrance.epoch,
                last_sequence_id=entrance.session.last_sequence_id,
                model=self._admission.model.name,
                limits=Limits(
                    max_message_bytes=config.max_message_bytes,
                    max_streams=config.max_streams,
                    max_context_tokens=self._admission.model.context_tokens,
                    messages_per_second=config.messages_per_second,
                    message_burst=config.message_burst,
                ),
                server_version=__version__,
                capabilities=capabilities,
                resume_token=entrance.token,
                session_present=entrance.is_present,
                retention_ms=round(config.retention_s * 1e3),
                resume_window_ms=round(config.resume_window_s * 1e3),
            )
        )
        self._on_welcome()
        if self._parting is not None:  # it came while this one was being let in
            self.go_away(self._parting.reason, 0)
        return attachment

    def _charge(self, event: ClientMessage | InvalidSubmit) -> None:
        bucket = self._acks if isinstance(event, Ack) else self._messages
        if not bucket.take(trio.current_time()):
            raise _TooFast

    def _handle(self, attachment: Attachment, event: ClientMessage | InvalidSubmit) -> None:
        match event:
            case Submit():
                attachment.submit(event)
            case Cancel():
                attachment.cancel(event)
            case Resume():
                attachment.resume(event)
            case Ack():
                attachment.acknowledge(event)
            case InvalidSubmit(sequence_id=sequence_id, field=field, reason=reason):
                refusal = RequestRefused(ErrorCode.INVALID_REQUEST, f"{field} {reason}", field=field)
                attachment.refuse(sequence_id, refusal)
            case Event():
                attachment.report(event)
            case _:
                raise RemoteProtocolError(f"{type(event).__name__} isn't expected now")

    async def _write(self, written: trio.Event) -> None:
        try:
            while (batch := await self._outbox.take(self._account.burst_bytes)) is not None:
                if self._connection.state in _SILENT:
                    return
                if batch.has_frames:  # an answer waits behind frames, never for bandwidth of its own
                    await self._wait_for_bandwidth()
                await self._send(batch)
        except (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            self._end(_GONE)
        except LocalProtocolError as error:
            _log.error("can't encode", session=self._session_id, exc_info=error)
            self._end(Farewell(CloseCode.INTERNAL_ERROR, "a bug in the server, see its log"))
        finally:
            self._outbox.close()
            written.set()

    async def _send(self, batch: Batch) -> None:
        if batch.has_frames:
            payloads = self._encode(batch.messages)
        else:
            payloads = [self._connection.send(answer) for answer in batch.messages]
        if len(payloads) == 1:
            await self._websocket.send_message(payloads[0])
        else:
            async with self._guard.together():
                for payload in payloads:
                    await self._websocket.send_message(payload)
        self._account.charge_bytes(sum(map(len, payloads)))
        batch.written()

    async def _wait_for_bandwidth(self) -> None:
        """Waits until its tenant owes nothing: the window then slows the model, and nothing is dropped."""
        while (wait_s := self._account.bandwidth_wait_s()) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await trio.sleep(min(wait_s, _PACE_S))

    def _encode(self, messages: tuple[ServerMessage, ...]) -> list[bytes | str]:
        """One message where it fits, more where the encoding swells, as JSON does with control characters."""
        try:
            return [self._connection.send(*messages)]
        except MessageTooLargeError:
            if len(messages) == 1:
                raise
            middle = len(messages) // 2
            return self._encode(messages[:middle]) + self._encode(messages[middle:])


class _TooFast(Exception):  # noqa: N818 - never leaves this file
    """The peer sends more messages a second than it may."""

"""The seam to the network: whole messages in and out, and an end that says why.

`Transport` is what a session needs; `WebSocketConnector` makes one over trio-websocket and is the only place
that knows that library. Every exception of it, of the socket and of TLS becomes one of this package's
errors, and no input from a server ends anything but its own connection. Must not know what a message means.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cached_property
from typing import Protocol

import trio
from attrs import frozen
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream
from wsproto.utilities import LocalProtocolError

from seedance_sdk.causes import error_of_close, error_of_status
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    SeedanceError,
)
from seedance_sdk.guard import GuardedStream
from seedance_sdk.limits import Limits
from seedance_wire.compression import longest_packed

__all__ = ["Connector", "Transport", "WebSocketConnector", "WebSocketTransport"]

# Messages that wait between the library's reader and ours, which never blocks. With the library's default of
# one, each message costs a switch between the two tasks.
_MESSAGE_QUEUE_SIZE = 8
# Larger reads of tiny frames would hold up the loop: about 8 µs a frame.
_RECEIVE_BYTES = 16_384
_ALPN = "http/1.1"
# Probe after 15 s of silence, every 5 s, three times; and give up on what is sent and not confirmed after
# 20 s.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 20_000,
}


class Transport(Protocol):
    """One connection that carries whole messages.

    One task may send while another receives.
    """

    @property
    def alpn_matched(self) -> bool | None:
        """Whether TLS agreed on the protocol that was asked for (ALPN); None where it was not asked."""

    async def send(self, data: bytes | str) -> None:
        """Sends one message. If cancelled, the connection is aborted: half a message is never followed.

        Raises:
            SeedanceError: The connection is over; it says why.
        """

    async def receive(self) -> bytes | str:
        """Returns the next message. Cancellation loses nothing.

        Raises:
            SeedanceError: The connection is over; it says why.
        """

    async def ping(self, payload: bytes) -> None:
        """Sends a WebSocket ping and waits for its pong, for as long as its caller lets it.

        Raises:
            SeedanceError: The connection is over; it says why.
        """

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Closes cleanly where the peer lets it, and in any case."""


class Connector(Protocol):
    """Makes connections; calling it changes nothing yet."""

    def __call__(self, endpoint: Endpoint, limits: Limits) -> AbstractAsyncContextManager[Transport]:
        """Returns a context that connects on entry and is closed on exit.

        Entry raises `SeedanceError` where no connection can be made; so may the exit where the connection
        ended by the server's fault.
        """


class WebSocketTransport:
    """A `Transport` over an open WebSocket.

    Attributes:
        alpn_matched: See `Transport`.
    """

    def __init__(
        self,
        websocket: WebSocketConnection,
        stream: GuardedStream,
        limits: Limits,
        *,
        alpn_matched: bool | None = None,
    ) -> None:
        self.alpn_matched = alpn_matched
        self._websocket = websocket
        self._stream = stream
        self._limits = limits

    async def send(self, data: bytes | str) -> None:
        """Sends one message; late or cancelled, the connection is aborted by the guarded stream."""
        try:
            await self._websocket.send_message(data)
        except (ConnectionClosed, LocalProtocolError):  # the latter while the library closes on its own
            raise self._over() from None

    async def receive(self) -> bytes | str:
        """Returns the next message."""
        try:
            message: bytes | str = await self._websocket.get_message()
        except ConnectionClosed:
            raise self._over() from None
        self._stream.note_message()
        return message

    async def ping(self, payload: bytes) -> None:
        """Waits for a pong; if cancelled, one that comes late is ignored."""
        try:
            await self._websocket.ping(payload)
        except (ConnectionClosed, LocalProtocolError):
            raise self._over() from None

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Closes with the handshake in ``close_timeout_s``, and in any case; never raises for a dead peer."""
        deadline = trio.current_time() + self._limits.close_timeout_s
        with trio.CancelScope(deadline=deadline, shield=True), suppress(ConnectionClosed):
            await self._websocket.aclose(code, reason or None)
        await self._stream.abort()

    def _over(self) -> SeedanceError:
        """Why the connection ended."""
        closed = self._websocket.closed
        if self._stream.tripped is not None:
            kind = ConnectionLost if self._stream.stalled else ProtocolError
            return kind(f"the connection was given up: {self._stream.tripped}", close_code=1006)
        if closed is None:
            return ProtocolError("the server sent bytes that are no WebSocket frames", close_code=1002)
        reason = closed.reason or ""
        if closed.code == 1009 and reason.startswith("Exceeded maximum message size"):
            # The library closed the connection on our behalf, in its own words.
            limit = self._limits.max_message_bytes
            return ProtocolError(f"the server sent a message over {limit} bytes", close_code=1009)
        return error_of_close(closed.code, reason)


@frozen
class WebSocketConnector:
    """Connects over TCP and, for ``wss``, TLS.

    Attributes:
        ssl_context: For ``wss``; None for Python's default, which checks the certificate and the host name.
        open_stream: Makes the byte stream; the test seam.
    """

    ssl_context: ssl.SSLContext | None = None
    open_stream: Callable[[Endpoint], Awaitable[trio.abc.Stream]] | None = None

    @cached_property
    def _default_context(self) -> ssl.SSLContext:
        """One for all connections: reading the machine's authorities takes some 25 ms each time."""
        context = ssl.create_default_context()
        context.set_alpn_protocols([_ALPN])
        return context

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        """Connects, upgrades, and hands out the transport; see `Connector`."""
        raw = await self._open(endpoint, limits)
        stream = GuardedStream(
            raw, max_message_bytes=limits.max_message_bytes, send_timeout_s=limits.send_timeout_s
        )
        websocket: WebSocketConnection | None = None
        failure: Exception | None = None
        finished = False
        try:
            async with trio.open_nursery() as nursery:
                websocket = await _upgrade(nursery, stream, endpoint, limits)
                if websocket is not None:
                    try:
                        matched = self._alpn_matched(raw)
                        yield WebSocketTransport(websocket, stream, limits, alpn_matched=matched)
                        finished = True
                    except Exception as error:  # noqa: BLE001 - carried around the nursery: it would wrap it
                        failure = error
                nursery.cancel_scope.cancel()  # never wait for the library's reader
        except* Exception as crashes:  # noqa: BLE001
            # The library's reader runs in this nursery, and raises whatever a server's bytes make it raise.
            unparsable = f"the server's bytes can't be parsed: {crashes.exceptions[0]!r:.200}"
            failure = failure or ProtocolError(unparsable, close_code=1002)
        finally:
            if websocket is None:  # asked before the stream ends by our own hand
                failure = _refusal(stream, limits)
            await stream.abort()
        if failure is not None and not finished:
            raise failure

    async def _open(self, endpoint: Endpoint, limits: Limits) -> trio.abc.Stream:
        try:
            with trio.fail_after(limits.connect_timeout_s):
                if self.open_stream is not None:
                    return await self.open_stream(endpoint)
                tcp = await trio.open_tcp_stream(endpoint.host, endpoint.port)
                _notice_a_dead_peer(tcp)
                if not endpoint.secure:
                    return tcp
                return await self._encrypt(tcp, endpoint)
        except trio.TooSlowError:
            waited = f"{limits.connect_timeout_s:g} s"
            raise ConnectFailed(f"no connection to {endpoint.url} within {waited}") from None
        except (OSError, trio.BrokenResourceError) as error:
            cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
            distrusted = isinstance(cause, ssl.SSLCertVerificationError)  # no second attempt changes that
            raise ConnectFailed(
                f"cannot connect to {endpoint.url}: {cause}", retryable=not distrusted
            ) from error

    def _alpn_matched(self, stream: trio.abc.Stream) -> bool | None:
        if not isinstance(stream, trio.SSLStream):
            return None
        agreed: str | None = stream.selected_alpn_protocol()
        if agreed is None and self.ssl_context is not None:
            return None  # a context of the caller's own, which may have asked for nothing
        return agreed == _ALPN

    async def _encrypt(self, tcp: trio.SocketStream, endpoint: Endpoint) -> trio.abc.Stream:
        context = self.ssl_context or self._default_context
        tls = trio.SSLStream(tcp, context, server_hostname=endpoint.host, https_compatible=True)
        shaken = False
        try:
            await tls.do_handshake()
            shaken = True
        finally:
            if not shaken:
                await trio.aclose_forcefully(tcp)
        return tls


def _notice_a_dead_peer(tcp: trio.SocketStream) -> None:
    """Has the system end a connection whose other end is gone without a word, idle or not, within 30 s."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every platform
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _upgrade(
    nursery: trio.Nursery, stream: GuardedStream, endpoint: Endpoint, limits: Limits
) -> WebSocketConnection | None:
    """Returns the open WebSocket, or None where there is none: the stream knows why.

    The library waits for ever where the server goes away before it answers, so two tasks race.
    """
    websocket: WebSocketConnection | None = None
    with trio.move_on_after(limits.handshake_timeout_s):
        async with trio.open_nursery() as race:

            async def give_up() -> None:
                await stream.ended.wait()
                race.cancel_scope.cancel()

            race.start_soon(give_up)
            websocket = await wrap_client_stream(
                nursery,
                stream,  # type: ignore[arg-type] # any stream will do, its annotation is too narrow
                endpoint.authority,
                endpoint.target,
                subprotocols=[endpoint.subprotocol],
                extra_headers=[(name.encode(), value.encode()) for name, value in endpoint.headers.items()],
                message_queue_size=_MESSAGE_QUEUE_SIZE,
                max_message_size=longest_packed(limits.max_message_bytes),
                receive_buffer_size=_RECEIVE_BYTES,
            )
            race.cancel_scope.cancel()
    if websocket is not None and websocket.subprotocol != endpoint.subprotocol:
        return None
    if websocket is not None:
        stream.note_accepted()
    return websocket


def _refusal(stream: GuardedStream, limits: Limits) -> SeedanceError:
    """Why the upgrade did not succeed."""
    if stream.tripped is not None:
        return ProtocolError(f"the connection was given up: {stream.tripped}")
    if stream.status is not None and stream.status != 101:
        return error_of_status(
            stream.status, stream.detail, stream.retry_after_ms, error_code=stream.error_code
        )
    if stream.cut_short or (stream.ended.is_set() and not stream.answered):
        return ConnectFailed("the server closed the connection before it answered the upgrade")
    if stream.status == 101:
        return ProtocolError("the server upgraded the connection, but not to this protocol")
    if stream.answered:
        return ProtocolError("the server's answer to the upgrade is not HTTP; is this its port?")
    return ConnectFailed(f"the server did not answer the upgrade within {limits.handshake_timeout_s:g} s")

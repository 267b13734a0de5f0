"""The accept loop: takes a connection only when there is a place for it, and survives what accept can raise.

Each loop waits for room before `accept`, so connections beyond the bounds wait in the kernel's backlog at no
cost; of several loops that saw the same room, one enters and the others hold their one connection until there
is room again. Somebody gives way only to a connection that is there.
When the process or the system is out of descriptors it waits and goes on. Each socket gets the options that
bound a half-open connection and the memory of a slow one.

It must not know what happens on a connection.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from seedance_server.errors import ListenError
from seedance_server.lobby import Lobby, Visit

__all__ = ["Reception", "accept_forever", "descriptor_budget", "listen"]

_log = structlog.get_logger(__name__)

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_EXHAUSTED_PAUSE_S = 0.1
"""How long accept rests when there is no descriptor: long enough for a handshake to end and free one."""
_BACKLOG = 1024
_SEND_BUFFER_BYTES = 65_536
"""The kernel's buffer for a peer that doesn't read: small, so that the window is what it feels."""
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 15),  # seconds of silence before the first probe
    ("TCP_KEEPINTVL", 5),  # seconds between probes
    ("TCP_KEEPCNT", 3),  # probes without an answer
)
_USER_TIMEOUT_MS = 20_000
"""Time for which sent bytes may stay unacknowledged by the peer's kernel."""


def descriptor_budget() -> int:
    """Connections that the limit on descriptors allows; raises the soft limit to the hard one first.

    Some are left for files, the model and the libraries: 512, or a quarter where the limit is small.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            _log.debug("descriptor limit can't be raised", soft=soft, hard=hard)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return int(soft - min(512, soft // 4))


async def listen(host: str, port: int) -> list[trio.SocketListener]:
    """Binds every address of ``host``; with port 0 the first one, on a free port.

    Raises:
        ListenError: With what the operating system says, in words.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        reason = {
            errno.EADDRINUSE: "the port is in use",
            errno.EACCES: "this user may not use that port",
            errno.EADDRNOTAVAIL: "this machine doesn't have that address",
        }.get(error.errno or 0)
        if isinstance(error, socket.gaierror):
            reason = "no such host"
        raise ListenError(host, port, reason or os.strerror(error.errno or 0)) from error
    if port != 0:
        return list(listeners)
    for surplus in listeners[1:]:  # they would each get a port of their own
        await surplus.aclose()
    return list(listeners[:1])


async def accept_forever(
    listener: trio.SocketListener,
    lobby: Lobby,
    serve_stream: Callable[[trio.abc.Stream, Visit, str], Awaitable[None]],
    nursery: trio.Nursery,
) -> None:
    """Accepts until cancelled.

    Args:
        listener: The listening socket; owned from here on.
        lobby: Where a new connection needs a place.
        serve_stream: Serves one connection; never raises.
        nursery: Where connections run.
    """
    exhausted = False
    async with listener:
        while True:
            await lobby.wait_for_room()
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                if not exhausted:
                    reason = os.strerror(error.errno or 0)
                    _log.error("out of descriptors or memory: connections wait", reason=reason)
                exhausted = True
                await trio.sleep(_EXHAUSTED_PAUSE_S)
                continue
            exhausted = False
            address = _prepare(stream)
            try:
                await lobby.wait_for_room()  # another listener may have filled it meanwhile
            except trio.Cancelled:
                await trio.aclose_forcefully(stream)
                raise
            # No checkpoint from here, or the room could be gone again.
            nursery.start_soon(serve_stream, stream, lobby.enter(address), address)


class Reception:
    """Takes the connections of some listeners, and can end all of them together.

    Args:
        listeners: The listening sockets; owned from here on.
        lobby: Where a new connection needs a place.
        serve_stream: Serves one connection; never raises.
    """

    def __init__(
        self,
        listeners: Sequence[trio.SocketListener],
        lobby: Lobby,
        serve_stream: Callable[[trio.abc.Stream, Visit, str], Awaitable[None]],
    ) -> None:
        self._listeners = listeners
        self._lobby = lobby
        self._serve_stream = serve_stream
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def run(self) -> None:
        """Runs until `end`."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for listener in self._listeners:
                        nursery.start_soon(accept_forever, listener, self._lobby, self._serve_stream, nursery)
        finally:
            self._over.set()

    async def end(self) -> None:
        """Takes no more and ends what there is: each connection still says goodbye, in its bound."""
        self._scope.cancel()
        await self._over.wait()


def _prepare(stream: trio.SocketStream) -> str:
    """Sets the socket's options and returns the peer's address; a peer that is gone already is no error."""
    try:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        return str(stream.socket.getpeername()[0])
    except OSError:
        return "unknown"

"""Tests of `seedance_server.listener`."""

import errno
import resource
import socket

import pytest
import trio

from seedance_server.errors import ListenError
from seedance_server.listener import Reception, accept_forever, descriptor_budget, listen
from seedance_server.lobby import Lobby


async def test_listen_says_in_words_why_it_cannot() -> None:
    """A taken port, a foreign address, an unknown host: one clear reason each."""
    (taken,) = await listen("127.0.0.1", 0)
    port = taken.socket.getsockname()[1]
    assert port
    with pytest.raises(ListenError, match=f"can't listen on 127.0.0.1 port {port}: the port is in use"):
        await listen("127.0.0.1", port)
    with pytest.raises(ListenError, match="doesn't have that address"):
        await listen("192.0.2.1", 0)
    with pytest.raises(ListenError, match="no such host"):
        await listen("host.invalid", 0)
    await taken.aclose()


class Listener(trio.abc.AsyncResource):
    """Plays one: each entry is an error to raise or a stream to give."""

    async def aclose(self):
        self.closed = True

    def __init__(self, results):
        self.results = list(results)

    async def accept(self):
        await trio.lowlevel.checkpoint()
        if not self.results:
            await trio.sleep_forever()
        result = self.results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result


async def accept_all(listener, lobby):
    served = []

    async def serve(stream, visit, address):
        served.append((stream, visit, address))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_forever, listener, lobby, serve, nursery)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    return served


async def test_accept_survives_a_lack_of_descriptors(autojump_clock) -> None:
    """EMFILE and its kin: wait, go on, lose nobody."""
    first, second = await real_pair()
    errors = [OSError(code, "x") for code in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)]
    served = await accept_all(Listener([*errors, second]), Lobby(8, 8))
    assert [entry[0] for entry in served] == [second]
    assert served[0][2] == "127.0.0.1"
    await first.aclose()
    await second.aclose()


async def real_pair():
    (listener,) = await listen("127.0.0.1", 0)
    client = await trio.open_tcp_stream(*listener.socket.getsockname())
    server = await listener.accept()
    await listener.aclose()
    return client, server


async def test_accept_bounds_what_a_socket_may_hold(autojump_clock) -> None:
    """A small send buffer and keepalive on every connection."""
    client, server = await real_pair()
    await accept_all(Listener([server]), Lobby(8, 8))
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * 65_536
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    await client.aclose()
    await server.aclose()


async def test_accept_takes_a_connection_only_when_there_is_a_place(autojump_clock) -> None:
    """Beyond the lobby connections wait in the kernel's backlog."""
    lobby = Lobby(1, 8)
    client, server = await real_pair()
    lobby.enter("127.0.0.1")
    listener = Listener([server])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_forever, listener, lobby, None, nursery)
        await trio.sleep(0.1)
        assert listener.results == [server]
        nursery.cancel_scope.cancel()
    assert listener.closed
    await client.aclose()
    await server.aclose()


async def test_accept_does_not_hide_other_errors() -> None:
    """A closed listener is a bug, not something to wait out."""
    with pytest.raises(BaseExceptionGroup) as caught:
        await accept_all(Listener([OSError(errno.EBADF, "x")]), Lobby(8, 8))
    assert caught.group_contains(OSError)


def test_descriptor_budget_leaves_some_for_the_rest_of_the_process() -> None:
    """512 or a quarter stay for files and libraries."""
    budget = descriptor_budget()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert budget == soft - min(512, soft // 4) or soft == resource.RLIM_INFINITY


async def test_two_listeners_share_the_last_place(autojump_clock) -> None:
    """Both may see it; one enters, the other holds its connection until there is room again."""
    lobby = Lobby(1, 8)
    pairs = [await real_pair() for _ in range(2)]
    visits = []

    async def serve(_stream, visit, _address):
        visits.append(visit)

    async with trio.open_nursery() as nursery:
        for _, server in pairs:
            nursery.start_soon(accept_forever, Listener([server]), lobby, serve, nursery)
        await trio.sleep(0.1)
        assert (len(visits), lobby.visits) == (1, 1)
        assert not visits[0].scope.cancel_called
        await trio.sleep(10)
        assert (len(visits), lobby.visits) == (2, 1)
        assert visits[0].scope.cancel_called
        assert not visits[1].scope.cancel_called, "nobody waits for that place"
        nursery.cancel_scope.cancel()
    for pair in pairs:
        for stream in pair:
            await stream.aclose()


async def test_reception_ends_its_connections_and_waits_for_their_last_words() -> None:
    """What they hold is given back before what it is given back to goes."""
    said = []

    async def serve_stream(stream, _visit, _address) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
                said.append("goodbye")
                await stream.aclose()

    listeners = await listen("127.0.0.1", 0)
    address = listeners[0].socket.getsockname()
    reception = Reception(listeners, Lobby(10, 10), serve_stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reception.run)
        clients = [await trio.open_tcp_stream(*address) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        await reception.end()
        assert said == ["goodbye"] * 3
        with pytest.raises(OSError, match=r"[Rr]efused|connect"):
            await trio.open_tcp_stream(*address)
        await reception.end()  # once more is no harm
    for client in clients:
        await client.aclose()

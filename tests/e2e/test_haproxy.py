"""A real HAProxy before two whole servers in this process: what it lets through, and where to."""

from __future__ import annotations

import shutil
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from attrs import define

from seedance_sdk import AsyncSeedanceClient
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from tests.certificates import HOST, client_context, write_certificate
from tests.faults.server_process import free_port
from tests.server.attacks import UPGRADE, read_head
from tests.server.http.probe import Client
from tests.server.wire_client import wire_client

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy" / "seedance.cfg"
ADDRESSES = ("127.0.0.1:8081", "127.0.0.1:8082")
KEYS = [f"user-{number}" for number in range(4)]
"""So many that each node has some; the hash is of these and of the nodes' places in the list."""
PIECES = [f"{number} " for number in range(20)]
PATIENCE_S = 30.0
COOKIE = "seedance_affinity=127.0.0.0; Max-Age=120; Path=/; Secure; HttpOnly; SameSite=Strict"
pytestmark = pytest.mark.slow


@define
class Node:
    """A server, where it listens, and as long as what."""

    server: InMemoryServer
    port: int
    accepting: trio.CancelScope

    @property
    def sessions(self) -> int:
        return self.server.door.statistics().upgraded


@define
class Edge:
    """HAProxy's port and log, and what is behind it."""

    port: int
    nodes: list[Node]
    log: Path

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
        """A connection of a client; cut at the end."""
        stream = await trio.open_ssl_over_tcp_stream(
            HOST, self.port, ssl_context=client_context("http/1.1"), https_compatible=True
        )
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    async def home(self, key: str) -> Node:
        """The node of an affinity: the one that a WebSocket gets to."""
        before = [node.sessions for node in self.nodes]
        async with self.open() as stream, wire_client(stream, target=f"/v1/chat?affinity={key}"):
            pass
        (home,) = (node for node, count in zip(self.nodes, before, strict=True) if node.sessions > count)
        return home

    async def logged(self, words: str) -> None:
        """Waits until HAProxy says so."""
        with trio.fail_after(PATIENCE_S):
            while words not in self.log.read_text():  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.02)


def _adapted(port: int, nodes: list[Node], directory: Path, check_every: str | None) -> str:
    """The shipped configuration with this machine's ports and files, and nothing else changed."""
    certificate, key = write_certificate(directory)
    both = directory / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    text = CONFIGURATION.read_text()
    changes = {
        "maxconn 20000": "maxconn 200",
        "bind :443": f"bind {HOST}:{port}",
        "/etc/seedance/tls/haproxy.pem": str(both),
        "check inter 2s fall 1 rise 1": f"check inter {check_every} fall 1 rise 1" if check_every else "",
        **{address: f"{HOST}:{node.port}" for address, node in zip(ADDRESSES, nodes, strict=True)},
    }
    for old, new in changes.items():
        assert old in text, f"{old} isn't in the shipped configuration any more"
        text = text.replace(old, new)
    return text


@asynccontextmanager
async def _node() -> AsyncIterator[Node]:
    async with (
        serve_in_memory(ScriptedEngine(PIECES), step_s=0.002) as server,
        trio.open_nursery() as nursery,
    ):
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        node = Node(server, listener.socket.getsockname()[1], trio.CancelScope())

        async def serve(stream: trio.SocketStream) -> None:
            await server.door.serve_stream(stream, server.door.lobby.enter(HOST), HOST)

        async def accept() -> None:
            with node.accepting:
                await trio.serve_listeners(serve, [listener], handler_nursery=nursery)

        nursery.start_soon(accept)
        yield node
        nursery.cancel_scope.cancel()


async def _listens(port: int) -> bool:
    try:
        await trio.aclose_forcefully(await trio.open_tcp_stream(HOST, port))
    except OSError:
        return False
    return True


@asynccontextmanager
async def haproxy_edge(directory: Path, check_every: str | None = None) -> AsyncIterator[Edge]:
    """Starts two servers and HAProxy; all are gone when the block is left.

    A check of a node is a connection like any other, so there is none where those are counted.
    """
    haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if haproxy is None:
        pytest.skip("there is no haproxy: apt-get install haproxy")
    async with _node() as one, _node() as other:
        edge = Edge(free_port(), [one, other], directory / "log")
        file = directory / "haproxy.cfg"
        file.write_text(_adapted(edge.port, edge.nodes, directory, check_every))
        with edge.log.open("wb") as log:
            start = partial(trio.run_process, stdout=log, stderr=log)
            await start([haproxy, "-c", "-f", str(file)])
            assert "WARNING" not in edge.log.read_text()
            async with trio.open_nursery() as nursery:
                await nursery.start(start, [haproxy, "-db", "-f", str(file)])
                with trio.fail_after(PATIENCE_S):
                    while not await _listens(edge.port):  # noqa: ASYNC110 - another process does
                        await trio.sleep(0.02)
                yield edge
                nursery.cancel_scope.cancel()


async def test_haproxy_brings_a_client_back_to_the_node_that_has_its_session(tmp_path: Path) -> None:
    """By its affinity, over connections that have nothing else in common; both nodes have some."""
    async with haproxy_edge(tmp_path) as edge:
        homes = Counter[int]()
        for key in KEYS:
            home = await edge.home(key)
            homes[home.port] += 1
            former = None
            for _ in (1, 2):
                before = home.sessions
                target = f"/v1/chat?affinity={key}"
                async with edge.open() as stream, wire_client(stream, former=former, target=target) as one:
                    assert one.welcome.session_present is (former is not None)
                    former = one.welcome
                assert home.sessions == before + 1
        assert set(homes) == {node.port for node in edge.nodes}


async def test_haproxy_opens_a_websocket_on_a_connection_that_it_kept(tmp_path: Path) -> None:
    """One connection to the node carries the request first and the WebSocket then."""
    async with haproxy_edge(tmp_path) as edge:
        home = await edge.home("a")
        before = home.server.door.statistics().connections
        async with edge.open() as stream:
            assert (await Client(stream).ask("GET", "/v1/models?affinity=a")).status == 200
            async with wire_client(stream, target="/v1/chat?affinity=a") as one:
                await one.submit()
                await one.accepted()
                assert (await one.until_end())[0] == "".join(PIECES)
        counts = home.server.door.statistics()
        assert (counts.connections - before, counts.requests, counts.upgraded) == (1, 1, 2)


async def begins_there_and_waits_here(edge: Edge, there: Node) -> None:
    """One more request goes to ``there``; who comes back does not, and is told to wait."""
    before = there.sessions
    url = f"wss://{HOST}:{edge.port}/v1/chat?affinity=a"
    async with AsyncSeedanceClient(url, ssl_context=client_context("http/1.1")) as client:
        assert (await client.complete(prompt="count")).text == "".join(PIECES)
    assert there.sessions == before + 1
    comes_back = UPGRADE.replace(b"/v1/chat", b"/v1/chat?affinity=a").replace(
        b"\r\n\r\n", b"\r\nSeedance-Session: session-1\r\n\r\n"
    )
    async with edge.open() as stream:
        await stream.send_all(comes_back)
        assert (await read_head(stream)).startswith(b"HTTP/1.1 503 ")
    assert there.sessions == before + 1


async def test_haproxy_sends_new_work_on_and_lets_nobody_come_back_elsewhere(tmp_path: Path) -> None:
    """Where a node drains or is away: what begins goes to the other, what is to go on is told to wait."""
    async with haproxy_edge(tmp_path, check_every="200ms") as edge:
        home = await edge.home("a")
        (other,) = (node for node in edge.nodes if node is not home)
        home.server.door.house.is_draining = True
        await begins_there_and_waits_here(edge, other)
        await edge.logged("is DOWN, reason: Layer7 wrong status, code: 503")
        await begins_there_and_waits_here(edge, other)
        home.accepting.cancel()  # as if it had been killed
        await begins_there_and_waits_here(edge, other)


async def test_haproxy_passes_pieces_on_as_they_come(tmp_path: Path) -> None:
    """An event of an answer over HTTP isn't held back until there are some kilobytes of them."""
    async with haproxy_edge(tmp_path) as edge, httpx.AsyncClient(verify=client_context()) as http:
        asked = {"prompt": "count", "max_tokens": len(PIECES), "stream": True}
        async with http.stream("POST", f"{edge.origin}/v1/completions", json=asked) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            pieces = [piece async for piece in response.aiter_raw()]
        assert b"".join(pieces).count(b"data: ") > len(PIECES)
        assert max(piece.count(b"data: ") for piece in pieces) < len(PIECES) / 2


async def test_haproxy_keeps_to_tls_1_3_and_metrics_to_itself(tmp_path: Path) -> None:
    """They tell of tenants; and a browser without an affinity gets one for as long as its protocol says."""
    async with haproxy_edge(tmp_path) as edge:
        older = client_context("http/1.1")
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        async with httpx.AsyncClient(verify=client_context("http/1.1")) as http:
            assert (await http.get(f"{edge.origin}/metrics")).status_code == 404
            for path, is_new in (("/healthz", True), ("/healthz?affinity=a", False), ("/healthz", False)):
                answer = await http.get(edge.origin + path)
                expected = (
                    "seedance_affinity=127.0.0.0; Max-Age=120; Path=/; Secure; HttpOnly; SameSite=Strict"
                )
                assert answer.headers.get("set-cookie") == (expected if is_new else None)
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(verify=older) as http:
                await http.get(edge.origin)

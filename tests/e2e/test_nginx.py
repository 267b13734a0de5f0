"""A real nginx in front of two real servers: what it lets through, where to, and what a drain costs."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient
from tests.certificates import HOST, client_context
from tests.e2e.held_handshake import relay_early_data
from tests.e2e.nginx_edge import Edge, nginx_edge
from tests.server.wire_client import wire_client

pytestmark = pytest.mark.slow

KEYS = [f"user-{number}" for number in range(12)]
"""So many that each node has some, wherever the ports put them."""
SHORT, LONG = 40, 220
"""Tokens of 20 ms: less than the two seconds that streams have in a drain, and more."""
HEALTH = "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with nginx_edge(tmp_path_factory.mktemp("edge"), "--shutdown-timeout", "4s", step_ms=20) as edge:
        yield edge


def client(edge: Edge, key: str) -> AsyncSeedanceClient:
    return AsyncSeedanceClient(f"{edge.url}?affinity={key}", ssl_context=client_context("http/1.1"))


def home(edge: Edge, key: str) -> str:
    """The node of an affinity."""
    uri = f"/healthz?affinity={key}"
    with httpx.Client(verify=client_context()) as http:
        http.get(f"{edge.origin}{uri}").raise_for_status()
    for _ in range(500):
        if nodes := edge.went_to(uri):
            return nodes[-1]
        time.sleep(0.01)  # nginx writes its log after its answer
    raise AssertionError(f"no line for {uri}")


def curl(edge: Edge, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "-sS", "-i", "--max-time", "20", "--cacert", str(edge.authority), *arguments]
    return subprocess.run([*command, f"{edge.origin}{path}"], capture_output=True, text=True, check=True)


def openssl(port: int, edge: Edge, *arguments: str, sent: str = "") -> str:
    """What a handshake of OpenSSL's own client brings, and what is answered."""
    command = ["openssl", "s_client", "-connect", f"{HOST}:{port}", "-CAfile", str(edge.authority)]
    done = subprocess.run(
        [*command, *arguments], input=sent.encode(), capture_output=True, timeout=30, check=False
    )
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-tls1_3", "-alpn", "h2,http/1.1"), "ALPN protocol: h2"),
        (("-tls1_3", "-alpn", "http/1.1"), "ALPN protocol: http/1.1"),
        (("-tls1_3",), "No ALPN negotiated"),
        (("-tls1_3", "-alpn", "ftp"), "no application protocol"),
        (("-tls1_2",), "protocol version"),
        (("-tls1_2", "-alpn", "h2"), "protocol version"),
    ],
)
def test_nginx_takes_tls_1_3_and_its_protocols_only(edge: Edge, flags: tuple[str, ...], words: str) -> None:
    """The same matrix as the server itself, with HTTP/2 in it."""
    assert words in openssl(edge.port, edge, *flags, sent="Q\n")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/healthz", "", "200"),
        ("POST", "/v1/completions", "Content-Length: 0\r\n", "425"),
        ("DELETE", "/v1/streams/x", "", "425"),
        ("GET", "/v1/chat", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "425"),
    ],
)
async def test_nginx_takes_early_data_for_what_may_be_replayed(
    edge: Edge, tmp_path: Path, method: str, path: str, headers: str, status: str
) -> None:
    """0-RTT saves a round trip where a copy does no harm; to the rest it says 425: send it again.

    The connection is closed by a second request, after the handshake: a server that closes while the end of
    early data is still on its way resets the connection, and takes its answer along.
    """
    session, early = tmp_path / "session", tmp_path / "early"
    openssl(edge.port, edge, "-tls1_3", "-sess_out", str(session), "-ign_eof", sent=HEALTH)
    target = f"{path}?early={method}"
    early.write_text(f"{method} {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")

    async def answered() -> None:
        with trio.fail_after(10):
            while not edge.went_to(target):  # noqa: ASYNC110 - nginx writes it
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host=HOST))[0]
        port = listener.socket.getsockname()[1]

        async def relay() -> None:
            async with listener:
                await relay_early_data(await listener.accept(), edge.port, answered)

        nursery.start_soon(relay)
        resumed = ("-tls1_3", "-sess_in", str(session), "-early_data", str(early), "-ign_eof")
        answer = await trio.to_thread.run_sync(partial(openssl, port, edge, *resumed, sent=HEALTH))
    assert "Early data was accepted" in answer
    assert re.findall(r"HTTP/1\.1 (\d+)", answer) == [status, "200"]


@pytest.mark.parametrize(("protocol", "seconds"), [("--http2", 300), ("--http1.1", 120)])
def test_nginx_keeps_a_browser_where_it_is_by_protocol(edge: Edge, protocol: str, seconds: int) -> None:
    """Who says no affinity gets one of his network, for a while; who has one keeps it."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl: apt-get install curl")
    answer = curl(edge, protocol, path="/healthz").stdout
    assert answer.startswith("HTTP/2 200" if protocol == "--http2" else "HTTP/1.1 200")
    cookie = f"seedance_affinity=127.0.0; Max-Age={seconds}; Path=/; Secure; HttpOnly; SameSite=Strict"
    assert f"set-cookie: {cookie}".lower() in answer.lower()
    again = curl(edge, protocol, "-b", "seedance_affinity=127.0.0", path="/healthz").stdout
    assert "set-cookie" not in again.lower()


def test_nginx_shows_metrics_to_nobody(edge: Edge) -> None:
    """They tell of tenants; whoever collects them asks the nodes."""
    with httpx.Client(verify=client_context()) as http:
        assert http.get(f"{edge.origin}/metrics").status_code == 404
        assert http.get(f"http://{HOST}:{edge.nodes[0].port}/metrics").status_code == 200


def test_nginx_passes_pieces_on_as_they_come(edge: Edge) -> None:
    """An event of an answer over HTTP isn't held back until there are some kilobytes of them."""
    asked = {"prompt": "count", "max_tokens": 1000, "stream": True}
    with (
        httpx.Client(verify=client_context()) as http,
        http.stream("POST", f"{edge.origin}/v1/completions", json=asked) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        pieces = response.iter_raw()
        some = b""
        while b"data: " not in some:
            some = next(pieces)
        assert some.count(b"data: ") < 10


async def test_nginx_brings_a_client_back_to_the_node_that_has_its_session(edge: Edge) -> None:
    """By its affinity, over connections that have nothing else in common; both nodes have some."""
    homes = set()
    for key in KEYS:
        homes.add(home(edge, key))
        former = None
        for _ in (1, 2):
            stream = await trio.open_ssl_over_tcp_stream(
                HOST, edge.port, ssl_context=client_context("http/1.1"), https_compatible=True
            )
            async with wire_client(stream, former=former, target=f"/v1/chat?affinity={key}") as one:
                assert one.welcome.session_present is (former is not None)
                former = one.welcome
    assert homes == {f"{HOST}:{node.port}" for node in edge.nodes}


async def stream_whole(edge: Edge, key: str, tokens: int, begun: list[str]) -> int:
    """Reads an answer that must be whole; returns how often its connection was made again."""
    async with client(edge, key) as one:
        stream = await one.complete(prompt="count", max_tokens=tokens, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.delta
            if chunk.delta and key not in begun:
                begun.append(key)
        assert text == "".join(numbers(tokens))
        return stream.reconnects


async def test_nginx_drains_a_node_without_a_lost_byte(edge: Edge) -> None:
    """Short answers end, long ones wait for their node, new ones go to the other; nobody else notices."""
    node = edge.nodes[0]
    homes = {key: home(edge, key) for key in KEYS}
    drained = [key for key in KEYS if homes[key] == f"{HOST}:{node.port}"]
    assert 0 < len(drained) < len(KEYS)
    parked = [drained[0], next(key for key in KEYS if key not in drained)]
    shorts = KEYS[::2]
    begun: list[str] = []
    reconnects: dict[tuple[str, int], int] = {}

    async def one(key: str, tokens: int) -> None:
        reconnects[key, tokens] = await stream_whole(edge, key, tokens, begun)

    async with trio.open_nursery() as nursery:
        for key in shorts:
            nursery.start_soon(one, key, SHORT)
        for key in parked:
            nursery.start_soon(one, key, LONG)
        with trio.fail_after(60):
            while len(begun) < len({*shorts, *parked}):  # noqa: ASYNC110 - any of them may be the last
                await trio.sleep(0.02)
        node.signal(signal.SIGTERM)
        await node.logged("shutting down")
        for key in drained[:3]:
            assert await stream_whole(edge, key, 3, []) == 0
        with trio.fail_after(60):
            assert await node.wait() == 0
        with trio.fail_after(30):
            while not edge.turned_away(f"/v1/chat?affinity={parked[0]}"):  # noqa: ASYNC110 - nginx writes it
                await trio.sleep(0.02)
        node.start()
        await node.wait_ready()
    assert [reconnects[key, SHORT] for key in shorts] == [0] * len(shorts)
    assert [reconnects[key, LONG] > 0 for key in parked] == [True, False]
    passed_on = [addresses for key in drained for addresses in edge.went_to(f"/v1/chat?affinity={key}")]
    assert any(", " in addresses for addresses in passed_on), "new work went on to the other node"

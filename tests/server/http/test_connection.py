"""Tests of `seedance_server.http.connection`: many requests on one connection, each bounded."""

import pytest
import trio

from seedance_server.config import Config
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Hello
from tests.server.attacks import UPGRADE, message_bytes, read_exactly, read_frame, read_head
from tests.server.http.probe import Client, read_all
from tests.server.wire_client import http, wire_client

KEY = "s3cret-key-of-16+"


async def test_connection_answers_one_request_after_the_other(autojump_clock) -> None:
    """Kept alive, also over a refusal, a HEAD and a body that nobody wanted."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        for method, path, body, status in (
            ("GET", "/healthz", None, 200),
            ("GET", "/nothing", None, 404),
            ("POST", "/healthz", b"unread", 405),
            ("GET", "/readyz", None, 200),
        ):
            answer = await client.ask(method, path, body)
            assert answer.status == status, (method, path, answer)
        assert server.door.statistics().requests == 4


async def test_connection_answers_pipelined_requests_in_order(autojump_clock) -> None:
    """What came with the first head isn't lost."""
    one = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(one + one + last)
        answer = await read_all(stream)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.count(b"HTTP/1.1 404 Not Found") == 1


async def test_connection_lets_an_offer_of_http_2_pass(autojump_clock) -> None:
    """HTTP/1.1 may ignore it; the connection goes on, up to a WebSocket."""
    h2c = (
        b"GET /healthz HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\n\r\n"
    )
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(h2c + UPGRADE)
        assert b"HTTP/1.1 200 OK" in await read_head(stream)
        await read_exactly(stream, len(b"ok\n"))
        assert (await read_head(stream)).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("path", ["/healthz", "/v1/models"])
async def test_connection_becomes_a_websocket_when_it_is_asked_to(autojump_clock, path: str) -> None:
    """As by a proxy that keeps connections alive: whole answers first, then one WebSocket, counted once."""
    async with serve_in_memory(ScriptedEngine(["a", "b"])) as server:
        client = Client(server.connect())
        for _ in range(2):
            assert (await client.ask("GET", path)).status == 200
        async with wire_client(client.stream) as websocket:
            await websocket.submit()
            await websocket.accepted()
            assert (await websocket.until_end())[0] == "ab"
            counts = server.door.statistics()
            assert (counts.upgraded, counts.websockets, counts.http, counts.requests) == (1, 1, 0, 2)
        await trio.sleep(10)
        assert server.door.statistics().websockets == server.door.statistics().contained == 0


async def test_connection_loses_no_byte_behind_an_upgrade(autojump_clock) -> None:
    """What a hasty client sends before its 101 is read then, wherever the pieces break."""
    sent = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" + UPGRADE + message_bytes(Hello())
    async with serve_in_memory() as server:
        for cut in range(1, len(sent), 7):
            stream = server.connect()
            await stream.send_all(sent[:cut])
            await trio.sleep(0.1)
            await stream.send_all(sent[cut:])
            assert b" 200 OK" in await read_head(stream)
            await read_exactly(stream, len(b"ok\n"))
            assert (await read_head(stream)).startswith(b"HTTP/1.1 101 ")
            assert await read_frame(stream)
            await stream.aclose()
            await trio.sleep(0.1)


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"Version: 13", b"Version: 8", 426),
        (b"seedance.v1", b"other", 400),
        (b"GET", b"POST", 405),
        (b"Bearer " + KEY.encode(), b"Bearer wrong", 401),
        (b"Host: localhost", b"Host: localhost\r\nOrigin: https://evil.example", 403),
        (b"Host: localhost", b"Host: localhost\r\nOrigin: http://a\r\nOrigin: http://b", 400),
    ],
)
async def test_connection_asks_of_a_late_upgrade_what_it_asks_of_an_early_one(
    autojump_clock, old: bytes, new: bytes, status: int
) -> None:
    """The same status, then a close: a key that was good for the last request proves nothing."""
    keyed = UPGRADE.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    upgrade = keyed.replace(old, new)
    async with serve_in_memory(config=Config(model_path="m", api_key=KEY)) as server:
        early = await http(server.connect(), upgrade)
        client = Client(server.connect())
        assert (await client.ask("GET", "/v1/models", Authorization=f"Bearer {KEY}")).status == 200
        await client.stream.send_all(upgrade)
        assert await read_all(client.stream) == early
        assert early.startswith(f"HTTP/1.1 {status} ".encode())


async def test_connection_that_became_a_websocket_keeps_to_its_bounds(autojump_clock) -> None:
    """Whoever acknowledges is cut for not reading as soon as any other, and has as long to say HELLO."""
    config = Config(model_path="m", send_timeout_s=10, http_send_timeout_s=60)
    async with serve_in_memory(config=config) as server:
        stream = server.connect_lockstep()
        for request in (b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", UPGRADE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, request)
                head = await read_head(stream)
            if request is not UPGRADE:
                await read_exactly(stream, len(b"ok\n"))
        assert head.startswith(b"HTTP/1.1 101 ")
        await stream.send_all(message_bytes(Hello()))  # and WELCOME isn't read
        await trio.sleep(9)
        assert server.door.statistics().websockets == 1
        await trio.sleep(5)
        assert server.door.statistics().websockets == 0


@pytest.mark.parametrize("junk", [b"\0\0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"X" * 20_000])
async def test_connection_ends_with_a_status_at_what_is_no_request(autojump_clock, junk: bytes) -> None:
    """The second request is looked at like the first."""
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" + junk)
        answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 4" in answer or b"HTTP/1.1 505" in answer
        assert server.door.statistics().contained == 0


async def test_connection_idle_is_closed_in_time(autojump_clock) -> None:
    """Soon while it has shown nothing, later once it was let in."""
    config = Config(model_path="m", handshake_timeout_s=5, keep_alive_s=75)
    async with serve_in_memory(config=config) as server:
        for path, patience_s in (("/healthz", 5), ("/v1/x", 75)):
            client = Client(server.connect())
            await client.ask("GET", path)
            began_s = trio.current_time()
            assert await read_all(client.stream) == b""
            assert patience_s <= trio.current_time() - began_s < patience_s + 3
        assert server.door.statistics().http == 0


async def test_connection_ends_quietly_when_the_client_does(autojump_clock) -> None:
    """At any byte of a request."""
    request = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
    async with serve_in_memory() as server:
        for size in range(len(request) + 1):
            stream = server.connect()
            await stream.send_all(request[:size])
            await stream.aclose()
        await trio.sleep(10)
        assert server.door.statistics().contained == 0
        assert server.door.statistics().http == 0


async def test_connection_keeps_to_the_rate_of_messages(autojump_clock) -> None:
    """A burst, then so many a second: slowed down, not refused."""
    config = Config(model_path="m", messages_per_second=10, message_burst=20)
    async with serve_in_memory(config=config) as server:
        client = Client(server.connect())
        began_s = trio.current_time()
        for _ in range(50):
            assert (await client.ask("GET", "/healthz")).status == 200
        assert 2.9 <= trio.current_time() - began_s <= 3.5

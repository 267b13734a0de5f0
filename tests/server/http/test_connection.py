"""Tests of `seedance_server.http.connection`: many requests on one connection, each bounded."""

import pytest
import trio

from seedance_server.config import Config
from seedance_server.testing import serve_in_memory
from tests.server.attacks import UPGRADE
from tests.server.http.probe import Client, read_all


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


async def test_connection_upgrades_nothing(autojump_clock) -> None:
    """HTTP/2 is an offer that HTTP/1.1 may ignore; a WebSocket wants a connection of its own."""
    h2c = (
        b"GET /healthz HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\n\r\n"
    )
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(h2c + UPGRADE)
        answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 426 Upgrade Required" in answer
        assert b" 101 " not in answer


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

"""Tests of `seedance_server.front_door`: routing and refusals over memory streams."""

import pytest
import trio
from trio_websocket import ConnectionClosed

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.proxies import parse_network
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.attacks import (
    UPGRADE,
    frame,
    raw_websocket,
    read_close_code,
    read_to_end,
)
from tests.server.wire_client import http, wire_client

KEY = "s3cret-key-of-16+"


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/healthz"), 200),
        (get("/readyz"), 200),
        (get("/readyz?verbose"), 200),
        (get("/healthz", "POST"), 405),
        (get("/"), 200),
        (get("/nothing"), 404),
        (get("/v1/chat/"), 404),
        (get("/v1/../v1/chat"), 404),
        (get("/v1/chat"), 426),
        (get("/v1/chat", "POST"), 405),
        (b"POST /v1/chat HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (UPGRADE.replace(b"seedance.v1", b"other"), 400),
        (UPGRADE.replace(b"Host: localhost", b"Host: localhost\r\nOrigin: https://evil.example"), 403),
    ],
)
async def test_door_sends_whole_answers_to_plain_http(autojump_clock, request_: bytes, status: int) -> None:
    """One whole answer and, sooner or later, a close; none of it reaches the WebSocket library."""
    async with serve_in_memory() as server:
        answer = await http(server.connect(), request_)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert server.door.statistics().upgraded == 0


async def test_door_gives_head_without_a_body(autojump_clock) -> None:
    """Load balancers ask with HEAD."""
    async with serve_in_memory() as server:
        answer = await http(server.connect(), get("/healthz", "HEAD"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n")


async def test_door_lets_listed_and_own_origins_in(autojump_clock) -> None:
    """A page of this server or a listed one may connect."""
    config = Config(model_path="m", allow_origins=("https://chat.example",))
    async with serve_in_memory(config=config) as server:
        for origin in (b"https://chat.example", b"http://localhost"):
            async with wire_client(server.connect(), headers=[(b"Origin", origin)]) as client:
                await client.submit()
                await client.accepted()


async def test_door_wants_the_key_where_there_is_one(autojump_clock) -> None:
    """401 without the key; liveness and readiness stay open to probes."""
    config = Config(model_path="m", api_key=KEY)
    async with serve_in_memory(config=config) as server:
        assert (await http(server.connect(), UPGRADE)).startswith(b"HTTP/1.1 401 ")
        assert (await http(server.connect(), get("/healthz"))).startswith(b"HTTP/1.1 200 ")
        good = [(b"Authorization", f"Bearer {KEY}".encode())]
        async with wire_client(server.connect(), headers=good) as client:
            await client.submit()
            await client.accepted()


async def test_door_is_alive_but_not_ready_before_the_model_is(autojump_clock) -> None:
    """Asked too early it answers 503 with the cause and when to come again, and doesn't hang."""
    from seedance_server.lobby import Lobby

    door = FrontDoor(Config(model_path="m"), Gate())
    assert isinstance(door.lobby, Lobby)
    for request_, status in ((get("/healthz"), 200), (get("/readyz"), 503), (UPGRADE, 503)):
        async with trio.open_nursery() as nursery:
            ours, theirs = trio.testing.memory_stream_pair()
            visit = door.lobby.enter("127.0.0.1")
            nursery.start_soon(door.serve_stream, theirs, visit, "127.0.0.1")
            answer = await http(ours, request_)
            await ours.aclose()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        if status == 503:
            assert b"loading the model" in answer
            assert b"retry-after: 1" in answer.lower()
    assert door.lobby.visits == 0


async def test_door_turns_away_above_the_limit_of_connections(autojump_clock) -> None:
    """N are served, N + 1 gets 503 and Retry-After, and a place that comes free is given."""
    config = Config(model_path="m", max_connections=2)
    async with serve_in_memory(config=config) as server, wire_client(server.connect()):
        async with wire_client(server.connect()):
            answer = await http(server.connect(), UPGRADE)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After" in answer
        await trio.sleep(5)
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()


async def test_door_turns_away_a_crowded_address(autojump_clock) -> None:
    """Sixteen handshakes of one address at once; another address isn't touched."""
    async with serve_in_memory() as server:
        drips = [server.connect("192.0.2.7") for _ in range(16)]
        assert (await http(server.connect("192.0.2.7"), get("/healthz"))).startswith(b"HTTP/1.1 429 ")
        assert (await http(server.connect("192.0.2.8"), get("/healthz"))).startswith(b"HTTP/1.1 200 ")
        for drip in drips:
            await drip.aclose()
        await trio.sleep(1)
        assert (await http(server.connect("192.0.2.7"), get("/healthz"))).startswith(b"HTTP/1.1 200 ")


async def test_door_shows_a_dead_engine_in_readiness(autojump_clock) -> None:
    """Readiness is red with the cause, and so is liveness: only another process can mend it."""
    async with serve_in_memory(ScriptedEngine(fail_at_step=1)) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            assert await client.close_code() == 1011
        answer = await http(server.connect(), get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"scripted failure" in answer
        assert b"\r\nSeedance-Error: engine_failed\r\n" in await http(server.connect(), UPGRADE)
        assert b"connection: close\r\n" in answer.lower()
        assert (await http(server.connect(), get("/healthz"))).startswith(b"HTTP/1.1 503 ")


async def test_door_drained_refuses_new_work_and_ends_what_does_not_end(autojump_clock) -> None:
    """New upgrades 503; a stream that doesn't end is left in the journal as it is, a dead peer is cut."""
    engine = ScriptedEngine(["x"] * 10_000)
    async with serve_in_memory(engine) as server:
        stalled = await raw_websocket(server.connect_lockstep())
        async with wire_client(server.connect()) as reading:
            await reading.submit()
            await reading.accepted()
            began_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.door.drain, 3)
                await trio.sleep(0.1)
                assert (await http(server.connect(), UPGRADE)).startswith(b"HTTP/1.1 503 ")
                assert (await http(server.connect(), get("/readyz"))).startswith(b"HTTP/1.1 503 ")
                with pytest.raises(ConnectionClosed) as closed:
                    await reading.until_end()
                assert closed.value.reason.code == 1001
        assert trio.current_time() - began_s <= 3 + 4 + 0.1
        await trio.aclose_forcefully(stalled)


async def test_door_frees_the_lobby_at_welcome_and_not_before(autojump_clock) -> None:
    """An upgrade alone proves nothing: until HELLO was answered the place is one of the few."""
    async with serve_in_memory() as server:
        stream = await raw_websocket(server.connect(), hello=False)
        await trio.sleep(1)
        assert server.door.statistics().lobby == 1
        async with wire_client(server.connect()):
            assert server.door.statistics().lobby == 1
        assert await read_close_code(stream) == 4408
        await stream.send_all(frame(8, b"\x11\x38"))
        await read_to_end(stream)
        await trio.sleep(3)
        assert server.door.statistics().lobby == 0


async def test_door_tells_draining_from_full(autojump_clock) -> None:
    """The header holds the word that REFUSED would: elsewhere, or here again."""
    config = Config(model_path="m", max_connections=1)
    async with serve_in_memory(config=config) as server:
        async with wire_client(server.connect()):
            assert b"\r\nSeedance-Error: overloaded\r\n" in await http(server.connect(), UPGRADE)
        await server.door.drain(1)
        assert b"\r\nSeedance-Error: draining\r\n" in await http(server.connect(), UPGRADE)


@pytest.mark.parametrize(("trusted", "other"), [((), 429), ((parse_network("10.0.0.0/8"),), 401)])
async def test_door_believes_a_trusted_proxy_on_whom_it_speaks_for(trusted, other) -> None:
    """Who guesses keys through a proxy is slowed down alone, for WebSockets and HTTP alike; and only then."""
    config = Config(model_path="m", api_key=KEY, trusted_proxies=trusted)

    wrong = b"\r\nAuthorization: Bearer wrong\r\nConnection: close\r\n"

    async def status(client: bytes, request: bytes) -> int:
        named = request.replace(b"\r\n", b"\r\nX-Forwarded-For: " + client + wrong, 1)
        return int((await http(server.connect("10.1.1.1"), named)).split(b" ", 2)[1])

    async with serve_in_memory(config=config) as server:
        for request in (UPGRADE, get("/v1/models")) * 5:
            assert await status(b"192.0.2.1", request) == 401
        for request in (UPGRADE, get("/v1/models")):
            assert await status(b"192.0.2.1", request) == 429
            assert await status(b"198.51.100.1", request) == other

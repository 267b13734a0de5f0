"""Tests of `seedance_server.http.tickets`: how a browser comes in, which sends no key with a WebSocket."""

import h11
import pytest
import structlog
import trio

from seedance_server.config import Config
from seedance_server.testing import InMemoryServer, serve_in_memory
from seedance_server.tickets import LIFETIME_S
from tests.server.http.probe import Client

KEY = "s3cret-key-of-16+"
KEYED = Config(model_path="m", api_key=KEY)
PAGE = "http://localhost"  # the probe's Host


async def fetch(server: InMemoryServer, **headers: str) -> str:
    answer = await Client(server.connect()).ask(
        "POST", "/v1/tickets", Authorization=f"Bearer {KEY}", **headers
    )
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["expires_in_ms"] == LIFETIME_S * 1000
    return str(answer.json()["ticket"])


async def upgrade(server: InMemoryServer, *subprotocols: str, origin: str = PAGE) -> tuple[int, str | None]:
    """Asks for a WebSocket as a browser would; returns the status and the subprotocol chosen."""
    client = Client(server.connect())
    await client.send(
        "GET",
        "/v1/chat",
        Origin=origin,
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        Sec_WebSocket_Protocol=", ".join(subprotocols),
    )
    answer = await client.next_event()
    assert isinstance(answer, h11.InformationalResponse | h11.Response)
    await client.stream.aclose()
    chosen = dict(answer.headers).get(b"sec-websocket-protocol")
    return answer.status_code, None if chosen is None else chosen.decode()


async def test_ticket_opens_one_websocket(autojump_clock) -> None:
    """It stands for the key once, and is no part of what the server answers."""
    async with serve_in_memory(config=KEYED) as server:
        offered = ("seedance.v1.json", f"seedance.ticket.{await fetch(server)}")
        assert await upgrade(server, *offered) == (101, "seedance.v1.json")
        assert (await upgrade(server, *offered))[0] == 401
        assert (await upgrade(server, "seedance.v1.json"))[0] == 401


async def test_ticket_opens_nothing_when_it_is_too_old(autojump_clock) -> None:
    """Half a minute is enough to connect, and little to a thief."""
    async with serve_in_memory(config=KEYED) as server:
        ticket = await fetch(server)
        await trio.sleep(LIFETIME_S)
        assert (await upgrade(server, "seedance.v1.json", f"seedance.ticket.{ticket}"))[0] == 401


async def test_ticket_is_only_given_for_the_key(autojump_clock) -> None:
    """Whoever may not come in gets no ticket either."""
    async with serve_in_memory(config=KEYED) as server:
        assert (await Client(server.connect()).ask("POST", "/v1/tickets")).status == 401
        wrong = await Client(server.connect()).ask("POST", "/v1/tickets", Authorization="Bearer wrong")
        assert wrong.status == 401
        assert (
            await Client(server.connect()).ask("GET", "/v1/tickets", Authorization=f"Bearer {KEY}")
        ).status == 405


@pytest.mark.parametrize("config", [KEYED, Config(model_path="m")], ids=["keyed", "open"])
async def test_ticket_is_not_given_to_foreign_pages(config: Config, autojump_clock) -> None:
    """Not even where no key is wanted: the page of another site can't use this server."""
    async with serve_in_memory(config=config) as server:
        client = Client(server.connect())
        foreign = await client.ask(
            "POST", "/v1/tickets", Origin="https://evil.example", Authorization=f"Bearer {KEY}"
        )
        assert foreign.status == 403


async def test_ticket_does_not_help_a_foreign_page(autojump_clock) -> None:
    """The origin is checked at both doors."""
    async with serve_in_memory(config=KEYED) as server:
        offered = ("seedance.v1.json", f"seedance.ticket.{await fetch(server)}")
        assert (await upgrade(server, *offered, origin="https://evil.example"))[0] == 403


async def test_ticket_is_given_where_no_key_is_wanted(autojump_clock) -> None:
    """A page need not know which kind of server it is on."""
    async with serve_in_memory() as server:
        ticket = await fetch(server, Origin=PAGE)
        assert (await upgrade(server, "seedance.v1.json", f"seedance.ticket.{ticket}"))[0] == 101


async def test_ticket_leaves_no_connection_behind(autojump_clock) -> None:
    """A page takes one place of the server's connections, its WebSocket's."""
    async with serve_in_memory(config=Config(model_path="m", max_connections=1)) as server:
        ticket = await fetch(server, Origin=PAGE)
        assert (await upgrade(server, "seedance.v1.json", f"seedance.ticket.{ticket}"))[0] == 101


async def test_ticket_is_not_logged(autojump_clock) -> None:
    """Neither it nor the key is in any line, whether it opens or not."""
    with structlog.testing.capture_logs() as lines:
        async with serve_in_memory(config=KEYED) as server:
            ticket = await fetch(server)
            for _ in range(2):
                await upgrade(server, "seedance.v1.json", f"seedance.ticket.{ticket}")
    assert lines
    assert ticket not in str(lines)
    assert KEY not in str(lines)

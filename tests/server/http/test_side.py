"""Tests of `seedance_server.http.side`: who may ask, and when nobody may any more."""

import os
from pathlib import Path

import h11
import pytest
import trio

from seedance_server.config import Config
from seedance_server.key_file import add_key, revoke_key
from seedance_server.keys import make_key
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.http.probe import Client, Events

KEY = "s3cret-key-of-16+"


async def test_side_wants_the_key_below_v1_and_nowhere_else(autojump_clock) -> None:
    """401 as OpenAI says it; probes need none."""
    async with serve_in_memory(config=Config(model_path="m", api_key=KEY)) as server:
        client = Client(server.connect())
        assert (await client.ask("GET", "/healthz")).status == 200
        answer = await client.ask("GET", "/v1/anything")
        assert answer.status == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await client.ask("GET", "/v1/anything", Authorization=f"Bearer {KEY}")).status == 404


async def test_side_turns_foreign_origins_away(autojump_clock) -> None:
    """A page from elsewhere can't use what needs no key; a listed one may, and is told so."""
    config = Config(model_path="m", allow_origins=("https://chat.example",))
    async with serve_in_memory(config=config) as server:
        client = Client(server.connect())
        assert (await client.ask("GET", "/v1/x", Origin="https://evil.example")).status == 403
        answer = await client.ask("GET", "/v1/x", Origin="https://chat.example")
        assert answer.status == 404
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answer = await client.ask("OPTIONS", "/v1/x", Origin="https://chat.example", **asked)
        assert answer.status == 200


async def test_side_counts_connections_with_websockets(autojump_clock) -> None:
    """One bound for both; a connection that was let in may go on asking."""
    async with serve_in_memory(config=Config(model_path="m", max_connections=1)) as server:
        client, late = Client(server.connect()), Client(server.connect())
        assert (await client.ask("GET", "/v1/x")).status == 404
        answer = await late.ask("GET", "/v1/x")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert (await client.ask("GET", "/v1/x")).status == 404
        assert server.door.statistics().http == 1
        await client.stream.aclose()
        await trio.sleep(1)
        assert (await Client(server.connect()).ask("GET", "/v1/x")).status == 404


async def test_side_lets_idle_connections_go_when_the_server_drains(autojump_clock) -> None:
    """Nobody waits for a client that keeps a connection in reserve."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        await client.ask("GET", "/v1/x")
        began_s = trio.current_time()
        await server.door.drain(30)
        assert trio.current_time() - began_s < 3
        answer = await Client(server.connect()).ask("GET", "/v1/x")
        assert (answer.status, answer.headers["seedance-error"]) == (503, "draining")


async def test_side_breaks_off_what_a_revoked_key_asked_for(tmp_path: Path) -> None:
    """Within two seconds, as a WebSocket is closed; the answer stays for the tenant's other keys."""
    path = tmp_path / "keys.toml"
    text, key = make_key("acme", os.urandom)
    add_key(path, key, {})
    config = Config(model_path="m", keys_path=path)
    async with serve_in_memory(ScriptedEngine(["x"] * 10_000), config=config) as server:
        events = Events(Client(server.connect()))
        body = {"prompt": "Hi", "stream": True, "max_tokens": 10_000}
        await events.ask("POST", "/v1/completions", body, Authorization=f"Bearer {text}")
        await events.next()
        revoke_key(path, key.id)
        await server.gate.reload(always=True)
        with pytest.raises(h11.RemoteProtocolError):
            await events.rest()
        assert (await Client(server.connect()).ask("GET", "/v1/models")).status == 401

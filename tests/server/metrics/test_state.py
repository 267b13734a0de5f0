"""Tests of `seedance_server.metrics.state`."""

import trio

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.tenants import Tenant
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.attacks import UPGRADE
from tests.server.metrics.scraping import samples, scrape, value
from tests.server.wire_client import http, wire_client


async def test_state_is_told_before_there_is_a_model() -> None:
    """A server that loads for minutes can be watched meanwhile, and says that it isn't ready."""
    door = FrontDoor(Config(model_path="m"), Gate())
    read = samples((await door.house.metrics.expose()).decode())
    assert value(read, "ready") == 0
    assert value(read, "not_ready", reason="loading") == 1
    assert ("seedance:num_requests_running",) not in read


async def test_state_shares_out_by_tenant_with_no_more_series_than_allowed(autojump_clock) -> None:
    """The first have their own, all others one together; the sums are those of everybody."""
    config = Config(model_path="m", metrics_tenants=2)
    async with serve_in_memory(config=config) as server:
        server.gate.accounts.update([Tenant(name=f"t{number}", weight=2.0) for number in range(10)])
        for number in range(10):
            server.gate.accounts.of(f"t{number}").prompt_tokens = 7
        async with wire_client(server.connect()) as client:
            await client.submit("four")
            await client.until_end()
            read = scrape(server)
        tokens = {
            labels[0][1]: count
            for (name, *labels), count in read.items()
            if name == "seedance:tenant_prompt_tokens_total"
        }
        assert tokens == {"local": 4, "t0": 7, "_others": 63}
        assert value(read, "prompt_tokens_total") == 74
        assert value(read, "tenant_weight", tenant="_others") == 18
        assert value(read, "tenant_connections", tenant="local") == 1
        assert value(read, "tenant_generation_tokens_total", tenant="local") == 4
        assert value(read, "tenant_sent_bytes_total", tenant="local") > 0


async def test_state_counts_what_compression_saves_on_websockets(autojump_clock) -> None:
    """Both ways, of those that are open and of those that are over; nothing is lost when one ends."""
    names = ("websocket_bytes_total", "websocket_plain_bytes_total")

    def carried(server, name):
        read = scrape(server)
        return [value(read, name, direction=direction) for direction in ("sent", "received")]

    async with serve_in_memory(ScriptedEngine(["one word of many "] * 80)) as server:
        assert [carried(server, name) for name in names] == [[0, 0], [0, 0]]
        totals = []
        for capabilities in ((), None):
            before = [carried(server, name) for name in names]
            async with wire_client(server.connect(), capabilities=capabilities) as client:
                await client.submit("Say it again. " * 30)
                await client.until_end()
                travelled, plain = [carried(server, name) for name in names]
                client_side = client.connection.statistics()
                assert travelled[1] - before[0][1] == client_side.bytes_sent
                assert plain[1] - before[1][1] == client_side.plain_bytes_sent
                totals.append((travelled, plain))
            await trio.sleep(5)
            assert server.door.statistics().websockets == 0
            assert carried(server, names[0])[0] >= travelled[0]
        (first, first_plain), (second, second_plain) = totals
        assert first == first_plain
        assert second[0] < second_plain[0]


async def test_state_counts_connections_by_how_they_came_and_went(autojump_clock) -> None:
    """Who was turned away and why, who became a WebSocket, with which code it ended."""
    config = Config(model_path="m", api_key="k" * 16)
    async with serve_in_memory(config=config) as server:
        await http(server.connect(), UPGRADE)
        async with wire_client(
            server.connect(), headers=[(b"Authorization", b"Bearer " + b"k" * 16)]
        ) as client:
            await client.websocket.aclose(4999)
        server.door.house.is_draining = True
        good = UPGRADE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer " + b"k" * 16 + b"\r\n\r\n")
        await http(server.connect(), good)
        await trio.sleep(5)
        read = scrape(server)
        assert value(read, "connections_refused_total", reason="unauthorized") == 1
        assert value(read, "connections_refused_total", reason="draining") == 1
        assert value(read, "connections_closed_total", code="other") == 1
        assert value(read, "connections_upgraded_total") == 1
        assert value(read, "not_ready", reason="draining") == 1
        assert value(read, "ready") == 0


async def test_state_tells_requests_that_wait_apart(autojump_clock) -> None:
    """What the engine hasn't begun with waits, wherever it stands; the rest runs."""
    engine = ScriptedEngine(["x"] * 10_000)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        server.engine_loop._executor.step_s = 1000
        await client.submit()
        await client.accepted()
        read = scrape(server)
        assert (value(read, "num_requests_waiting"), value(read, "num_requests_running")) == (1, 0)

"""Tests of `seedance_server.http.health`."""

from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.http.probe import Client


async def test_health_gives_head_without_a_body(autojump_clock) -> None:
    """Load balancers ask with HEAD."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        for path in ("/healthz", "/readyz"):
            answer = await client.ask("HEAD", path)
            assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "3")


async def test_health_tells_why_there_is_no_readiness(autojump_clock) -> None:
    """The cause in the body, when to come again in a header."""
    async with serve_in_memory(ScriptedEngine()) as server:
        server.door.house.is_draining = True
        answer = await Client(server.connect()).ask("GET", "/readyz")
        assert (answer.status, answer.body) == (503, b"draining\n")
        assert answer.headers["retry-after"] == "1"
        assert (await Client(server.connect()).ask("GET", "/healthz")).status == 200

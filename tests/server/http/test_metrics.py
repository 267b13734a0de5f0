"""Tests of `seedance_server.http.metrics`."""

from seedance_server.config import Config
from seedance_server.testing import serve_in_memory
from tests.server.http.probe import Client

KEY = "a-key-for-scrapers"


async def test_metrics_are_open_unless_the_operator_chose_a_key(autojump_clock) -> None:
    """As a scraper on a trusted network expects; a key for clients changes nothing."""
    async with serve_in_memory(config=Config(model_path="m", api_key="k" * 16)) as server:
        answer = await Client(server.connect()).ask("GET", "/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert answer.headers["cache-control"] == "no-store"
        assert b"seedance:ready 1.0" in answer.body
        assert (await Client(server.connect()).ask("HEAD", "/metrics")).body == b""


async def test_metrics_ask_for_their_own_key_where_there_is_one(autojump_clock) -> None:
    """A tenant's key shows nothing of the others' figures."""
    config = Config(model_path="m", api_key="k" * 16, metrics_key=KEY)
    async with serve_in_memory(config=config) as server:

        async def ask(**headers):
            return await Client(server.connect()).ask("GET", "/metrics", **headers)

        for headers in ({}, {"Authorization": f"Bearer {'k' * 16}"}, {"Authorization": f"Basic {KEY}"}):
            answer = await ask(**headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"seedance:" not in answer.body
        assert (await ask(Authorization=f"Bearer {KEY}")).status == 200
        assert server.door.statistics().refusals["unauthorized"] == 3

"""Tests of `seedance_server.http.models`."""

from seedance_server.testing import serve_in_memory
from tests.server.http.probe import Client


async def test_models_are_the_one_that_is_served(autojump_clock) -> None:
    """Also where its name holds a slash."""
    async with serve_in_memory(model_name="meta/llama-3") as server:
        client = Client(server.connect())
        listed = (await client.ask("GET", "/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["meta/llama-3"]
        assert (await client.ask("GET", "/v1/models/meta/llama-3")).json() == listed["data"][0]
        missing = await client.ask("GET", "/v1/models/llama-3")
        assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")

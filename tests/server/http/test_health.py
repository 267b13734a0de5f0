"""Tests of `seedance_server.http.health`."""

import json

from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine, serve_in_memory
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
        assert (answer.status, answer.body) == (503, b"no\ndraining: the server is shutting down\n")
        assert answer.headers["retry-after"] == "1"
        assert (await Client(server.connect()).ask("GET", "/healthz")).status == 200


async def test_health_is_json_for_who_accepts_it(autojump_clock) -> None:
    """A page or a script reads causes by name; what was found of the model at start is said too."""
    model = ServedModel(
        name="m",
        context_tokens=99,
        vocab_size=9,
        engine=ScriptedEngine(),
        encoder=ScriptedEncoder(),
        fingerprint=b"",
        invariance="output doesn't depend on company",
        kernels="our own",
    )
    async with serve_in_memory(model=model) as server:
        client = Client(server.connect())
        plain = await client.ask("GET", "/readyz")
        assert plain.body == b"ok\ninvariance: output doesn't depend on company\nkernels: our own\n"
        server.door.house.is_draining = True
        client = Client(server.connect())
        answer = await client.ask("GET", "/readyz", Accept="application/json")
        assert (answer.status, json.loads(answer.body)) == (
            503,
            {
                "ready": False,
                "alive": True,
                "reasons": [{"cause": "draining", "reason": "the server is shutting down"}],
                "invariance": "output doesn't depend on company",
                "kernels": "our own",
            },
        )

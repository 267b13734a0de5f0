"""Tests of `seedance_server.http.app`: one shape for every error, and bugs are contained."""

import trio
from starlette.responses import Response
from starlette.routing import Route

import seedance_server.http.app
from seedance_server.testing import serve_in_memory
from tests.server.http.probe import Client


async def test_app_answers_what_is_not_there_in_the_api_s_shape(autojump_clock) -> None:
    """404 and 405 are error objects too."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        for method, path, status in (("GET", "/v1/nothing", 404), ("POST", "/healthz", 405)):
            answer = await client.ask(method, path)
            assert answer.status == status
            assert answer.json()["error"]["code"] in {"not_found", "method_not_allowed"}
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_app_calls_a_bug_internal_and_ends_that_connection_only(autojump_clock, monkeypatch) -> None:
    """The log has the rest."""

    async def broken(_) -> Response:
        raise RuntimeError("secret")

    monkeypatch.setattr(seedance_server.http.app, "all_routes", lambda _: [Route("/broken", broken)])
    async with serve_in_memory() as server:
        answer = await Client(server.connect()).ask("GET", "/broken")
        assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
        assert b"secret" not in answer.body
        await trio.sleep(1)
        assert server.door.statistics().contained == 1
        assert (await Client(server.connect()).ask("GET", "/broken")).status == 500

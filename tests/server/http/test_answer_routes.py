"""Tests of `seedance_server.http.answer_routes`: an answer is read on from anywhere, by its tenant alone."""

import json
import os
from pathlib import Path

import pytest
import trio

from seedance_server.config import Config
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from seedance_server.key_file import add_key
from seedance_server.keys import make_key
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.http.probe import Client, Events

ASK = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
LONG = [f"piece {number} " for number in range(40)]


def new_key(path: Path, tenant: str) -> str:
    text, key = make_key(tenant, os.urandom)
    add_key(path, key, {})
    return text


async def begin(server, body=ASK, **headers: str) -> tuple[Events, str]:
    """Asks for an answer; the events, and where it can be read again."""
    events = Events(Client(server.connect()))
    response = await events.ask("POST", "/v1/chat/completions", body, **headers)
    name = dict(response.headers)[b"x-request-id"].decode()
    return events, f"/v1/streams/{name}"


async def test_answer_read_again_follows_what_is_live(autojump_clock) -> None:
    """Cut in the middle, read on from the last event: nothing twice, nothing missing."""
    async with serve_in_memory(ScriptedEngine(LONG)) as server:
        events, path = await begin(server)
        got = [await events.next() for _ in range(7)]
        await events.client.stream.aclose()
        again = Events(Client(server.connect()))
        await again.ask("GET", f"{path}?starting_after={got[-1].id}")
        got += [await again.next() for _ in range(5)]
        await again.client.stream.aclose()
        last = Events(Client(server.connect()))
        await last.ask("GET", f"{path}?starting_after=1", Last_Event_ID=got[-1].id)  # the header is newer
        got += await last.rest()
        assert [event.id for event in got] == [*map(str, range(1, 42)), "43"]
        text = "".join(event.json()["choices"][0]["delta"].get("content", "") for event in got[:-1])
        assert text == "".join(LONG)


async def test_answer_has_several_readers_at_once(autojump_clock) -> None:
    """Each gets all of it; it is made once."""
    engine = ScriptedEngine(LONG)
    async with serve_in_memory(engine) as server:
        first, path = await begin(server)
        second = Events(Client(server.connect()))
        await second.ask("GET", path)
        assert await second.rest() == await first.rest()
        assert len(engine.requests) == 1


async def test_answer_goes_on_after_the_server_died(autojump_clock) -> None:
    """Another process on the same journal goes on where the client is."""
    journal = MemoryJournal()
    got = []
    async with serve_in_memory(ScriptedEngine(LONG), journal=journal) as server:
        events, path = await begin(server)
        got += [await events.next() for _ in range(9)]
    async with serve_in_memory(ScriptedEngine(LONG), journal=journal) as server:
        again = Events(Client(server.connect()))
        await again.ask("GET", f"{path}?starting_after={got[-1].id}")
        got += await again.rest()
    text = "".join(event.json()["choices"][0]["delta"].get("content", "") for event in got[:-1])
    assert text == "".join(LONG)
    assert got[-1].data == "[DONE]"


async def test_answer_is_cancelled_at_once(autojump_clock) -> None:
    """The engine stops, the reader is told, and a second time changes nothing."""
    engine = ScriptedEngine(["x"] * 10_000)
    async with serve_in_memory(engine) as server:
        events, path = await begin(server)
        await events.next()
        answer = await Client(server.connect()).ask("DELETE", path)
        assert answer.json() == {"id": path.rpartition("/")[2], "object": "stream", "cancelled": True}
        assert engine.active == ()
        got = await events.rest()
        assert got[-2].json()["choices"][0]["finish_reason"] == "cancelled"
        answer = await Client(server.connect()).ask("DELETE", path)
        assert answer.json()["cancelled"] is False


async def test_answer_is_nobody_else_s(autojump_clock, tmp_path: Path) -> None:
    """A foreign tenant gets the same 404 as for what never was."""
    path = tmp_path / "keys.toml"
    keys = {name: new_key(path, name) for name in ("alice", "bob")}
    journal = MemoryJournal(JournalLimits(retention_s=50, session_s=50))
    async with serve_in_memory(config=Config(model_path="m", keys_path=path), journal=journal) as server:
        headers = {name: {"Authorization": f"Bearer {text}"} for name, text in keys.items()}
        events, where = await begin(server, **headers["alice"])
        await events.rest()
        client = Client(server.connect())
        never = await client.ask("GET", "/v1/streams/chatcmpl-" + 32 * "0", **headers["bob"])
        for method in ("GET", "DELETE"):
            foreign = await client.ask(method, where, **headers["bob"])
            assert (foreign.status, foreign.body) == (404, never.body)
        again = Events(Client(server.connect()))
        await again.ask("GET", where, **headers["alice"])
        assert len(await again.rest()) == 6
        await trio.sleep(100)
        for name, status in (("alice", 410), ("bob", 404)):  # not even that there was one
            assert (await Client(server.connect()).ask("GET", where, **headers[name])).status == status


@pytest.mark.parametrize(
    ("cursor", "status"), [("99", 400), ("1-1", 400), ("x", 400), ("-1", 400), ("8", 400), ("7", 200)]
)
async def test_answer_refuses_what_is_no_place_in_it(autojump_clock, cursor: str, status: int) -> None:
    """Behind the end there is nothing; what never was isn't guessed at."""
    async with serve_in_memory() as server:
        events, path = await begin(server)
        await events.rest()
        answer = await Client(server.connect()).ask("GET", f"{path}?starting_after={cursor}")
        assert answer.status == status
        if status == 400:
            assert answer.json()["error"]["code"] == "invalid_cursor"


async def test_answer_gone_is_said_to_be(autojump_clock) -> None:
    """410 once its time is over, also to the request that made it; never an answer made anew."""
    journal = MemoryJournal(JournalLimits(retention_s=5, session_s=5))
    async with serve_in_memory(journal=journal) as server:
        events, path = await begin(server, Idempotency_Key="once")
        await events.rest()
        await trio.sleep(60)
        answer = await Client(server.connect()).ask("GET", path)
        assert (answer.status, answer.json()["error"]["code"]) == (410, "expired")
        answer = await Client(server.connect()).ask(
            "POST", "/v1/chat/completions", ASK, Idempotency_Key="once"
        )
        assert answer.status == 410


async def test_answer_counts_each_prompt_once_when_read_again(autojump_clock) -> None:
    """Usage at the end of a replay is what the request was told."""
    body = {"prompt": ["Hi", "Hello"], "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with serve_in_memory() as server:
        events = Events(Client(server.connect()))
        response = await events.ask("POST", "/v1/completions", body)
        got = await events.rest()
        name = dict(response.headers)[b"x-request-id"].decode()
        again = Events(Client(server.connect()))
        await again.ask("GET", f"/v1/streams/{name}?include_usage=true")
        replayed = await again.rest()
        assert json.loads(replayed[-2].data) == json.loads(got[-2].data)
        assert got[-2].json()["usage"]["prompt_tokens"] == 7

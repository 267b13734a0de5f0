"""Tests of `seedance_server.http.completions`: OpenAI's requests over real HTTP, a scripted engine behind."""

import trio

from seedance_server.config import Config
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.http.probe import Client, Events

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


async def test_completions_answer_whole(autojump_clock) -> None:
    """Text, reason, usage and a name."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        answer = await client.ask("POST", "/v1/chat/completions", CHAT)
        assert answer.status == 200
        body = answer.json()
        assert body["object"] == "chat.completion"
        assert body["id"] == answer.headers["x-request-id"]
        assert body["choices"][0]["message"]["content"] == "Hello, world!"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 4
        answer = await client.ask("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        assert answer.json()["choices"][0]["text"] == "Hello, "
        assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_completions_answer_as_events(autojump_clock) -> None:
    """Each with its id, the role once, the end said."""
    async with serve_in_memory() as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        got = await events.rest()
        assert [event.id for event in got] == ["1", "2", "3", "4", "5", "7"]
        deltas = [event.json()["choices"][0]["delta"] for event in got[:-2]]
        assert deltas[0] == {"role": "assistant", "content": "Hello"}
        assert "".join(delta["content"] for delta in deltas) == "Hello, world!"
        assert got[-2].json()["choices"][0]["finish_reason"] == "stop"
        assert got[-1].data == "[DONE]"


async def test_completions_replay_from_any_event(autojump_clock) -> None:
    """The same key, wherever it was cut: what follows, byte for byte, and nothing is made twice."""
    engine = ScriptedEngine()
    body = {**CHAT, "stream": True, "n": 2, "stream_options": {"include_usage": True}}
    async with serve_in_memory(engine) as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", body, Idempotency_Key="one")
        whole = await events.rest()
        for taken in range(len(whole) + 1):
            headers = {"Idempotency_Key": "one"}
            if taken:
                headers["Last_Event_ID"] = whole[taken - 1].id
            again = Events(Client(server.connect()))
            await again.ask("POST", "/v1/chat/completions", body, **headers)
            rest = await again.rest()
            assert sorted(event.data for event in rest) == sorted(event.data for event in whole[taken:])
        assert len(engine.requests) == 2

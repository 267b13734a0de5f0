"""Exactly once over plain HTTP: a server with a real model is killed in the middle, twice."""

from __future__ import annotations

import json
from pathlib import Path

import h11
import pytest
import trio

from tests.faults.server_process import ServerProcess, server_process
from tests.server.http.probe import Client, Event, Events
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

BODY = {
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 400,
    "temperature": 1.0,
    "seed": 3,
    "n": 2,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def connect(server: ServerProcess) -> Client:
    return Client(await trio.open_tcp_stream("127.0.0.1", server.port))


async def read_some(events: Events, got: list[Event], count: int) -> None:
    """Reads so many events, or to the end."""
    for _ in range(count):
        if (event := await events.next()) is None:
            return
        got.append(event)


def texts(events: list[Event]) -> list[str]:
    """What each choice says."""
    said = ["", ""]
    for event in events[:-2]:
        for choice in event.json()["choices"]:
            said[choice["index"]] += choice["delta"].get("content", "")
    return said


async def test_answer_survives_kills_over_plain_http(tmp_path: Path) -> None:
    """By its key with Last-Event-ID, and by its name: every piece once, and the same as without a cut."""
    model = build_tiny_model("qwen2", tmp_path / "model")
    flags = ("--model-path", str(model), "--kv-memory", "4MiB", "--threads", "1")
    async with server_process(tmp_path, *flags, "--journal", str(tmp_path / "journal.db")) as server:
        whole: list[Event] = []
        events = Events(await connect(server))
        await events.ask("POST", "/v1/chat/completions", BODY)
        await events.rest(whole)
        await events.client.stream.aclose()

        got: list[Event] = []
        name = ""
        for life in range(2):
            events = Events(await connect(server))
            last = {"Last_Event_ID": got[-1].id} if got else {}
            if life % 2:
                path = f"/v1/streams/{name}?include_usage=true"
                await events.ask("GET", path, **last)
            else:
                head = await events.ask(
                    "POST", "/v1/chat/completions", BODY, Idempotency_Key="killed", **last
                )
                name = dict(head.headers)[b"x-request-id"].decode()
            await read_some(events, got, 150)
            await server.kill()
            with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
                await events.rest([])
            await events.client.stream.aclose()
            server.start()
            await server.wait_ready()
        events = Events(await connect(server))
        await events.ask("GET", f"/v1/streams/{name}?include_usage=true", Last_Event_ID=got[-1].id)
        await events.rest(got)
        await events.client.stream.aclose()
        assert texts(got) == texts(whole)
        assert len({event.id for event in got}) == len(got)
        assert got[-1].data == "[DONE]"
        assert json.loads(got[-2].data)["usage"]["completion_tokens"] == 800

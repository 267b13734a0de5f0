"""Tests of `seedance_server.http.completions`: OpenAI's requests over real HTTP, a scripted engine behind."""

import h11
import pytest
import trio

from seedance_server.config import Config
from seedance_server.engine.errors import NumericalError, OutOfDeviceMemory
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.http.probe import Client, Events, read_all

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


async def test_completions_stand_while_their_reader_does(autojump_clock) -> None:
    """A socket that nobody reads holds the sequence up and nobody else; what it missed can be had."""
    engine = ScriptedEngine(["x" * 50] * 1000)
    config = Config(model_path="m", http_send_timeout_s=60, pause_park_s=1000, orphan_grace_s=100)
    async with serve_in_memory(engine, config=config) as server:
        standing = Client(server.connect_lockstep())
        async with trio.open_nursery() as nursery:
            body = {**CHAT, "stream": True}
            nursery.start_soon(standing.send, "POST", "/v1/chat/completions", body)
        first = await standing.next_event()
        name = dict(first.headers)[b"x-request-id"].decode()
        await trio.sleep(30)
        assert len(engine.paused) == 1
        made = engine.computed_tokens
        assert made < 150
        reading = Client(server.connect())
        answer = await reading.ask("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 300})
        assert answer.json()["usage"]["completion_tokens"] == 300
        assert engine.computed_tokens == made + 300
        await trio.sleep(31)  # now it is cut
        assert not (await read_all(standing.stream)).endswith(b"0\r\n\r\n")
        events = Events(Client(server.connect()))
        await events.ask("GET", f"/v1/streams/{name}")
        assert len(await events.rest()) == 1002


async def test_completions_nobody_can_ask_for_end_with_their_client(autojump_clock) -> None:
    """Whole answers have no name until they are there; with a key of the client's they can be had again."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        for headers, active in (({}, 0), ({"Idempotency_Key": "mine"}, 1)):
            client = Client(server.connect())
            await client.send("POST", "/v1/chat/completions", CHAT, **headers)
            await trio.sleep(0.5)
            assert len(engine.active) == 1
            await client.stream.aclose()
            await trio.sleep(0.5)
            assert len(engine.active) == active
        answer = await Client(server.connect()).ask("POST", "/v1/chat/completions", CHAT, **headers)
        assert answer.json()["usage"]["completion_tokens"] == 1000
        assert len(engine.requests) == 2


async def test_completions_end_with_their_client_if_it_said_so(autojump_clock) -> None:
    """A user who closes the page wants nothing more; else events go on for a while."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        for on_disconnect, active in (("continue", 1), ("cancel", 0)):
            events = Events(Client(server.connect()))
            body = {**CHAT, "stream": True, "on_disconnect": on_disconnect}
            await events.ask("POST", "/v1/chat/completions", body)
            await events.next()
            await events.client.stream.aclose()
            await trio.sleep(0.5)
            assert len(engine.active) == active
            await trio.sleep(30)


async def test_completions_refuse_what_they_must(autojump_clock) -> None:
    """Each with the status and code of OpenAI's, before anything has begun."""
    engine = ScriptedEngine(context_tokens=10)
    config = Config(model_path="m", max_message_bytes=5000)
    async with serve_in_memory(engine, config=config, model_name="tiny") as server:
        client = Client(server.connect())
        for body, status, code, param in (
            (b"{", 400, None, None),
            (b'{"messages": NaN}', 400, None, None),
            (b"[" * 4000, 400, None, None),
            ([], 400, None, None),
            ({**CHAT, "model": "gpt-4"}, 404, "model_not_found", "model"),
            ({**CHAT, "temperature": 101}, 400, None, "temperature"),
            ({**CHAT, "max_completion_tokens": 0}, 400, None, "max_tokens"),
            ({"messages": [{"role": "user", "content": "x" * 20}]}, 400, "context_length_exceeded", None),
            ({**CHAT, "seed": 2**70}, 400, None, "seed"),
            ({**CHAT, "user": "x" * 6000}, 413, "request_too_large", None),
        ):
            answer = await client.ask("POST", "/v1/chat/completions", body)
            error = answer.json()["error"]
            assert (answer.status, error["code"], error["param"]) == (status, code, param), body
            if status == 413:
                break
        assert engine.requests == []


async def test_completions_know_a_key_used_otherwise(autojump_clock) -> None:
    """422, which clients don't send again by themselves."""
    async with serve_in_memory() as server:
        client = Client(server.connect())
        await client.ask("POST", "/v1/chat/completions", CHAT, Idempotency_Key="one")
        other = {**CHAT, "seed": 1}
        answer = await client.ask("POST", "/v1/chat/completions", other, Idempotency_Key="one")
        assert (answer.status, answer.json()["error"]["code"]) == (422, "idempotency_mismatch")
        for key in ("", "x" * 256):
            answer = await client.ask("POST", "/v1/chat/completions", CHAT, Idempotency_Key=key)
            assert answer.status == 400
        answer = await client.ask("POST", "/v1/chat/completions", CHAT, Last_Event_ID="1")
        assert answer.status == 400
        answer = await client.ask(
            "POST", "/v1/chat/completions", CHAT, Last_Event_ID="1", Idempotency_Key="unknown"
        )
        assert answer.status == 410


async def test_completions_tell_how_they_failed(autojump_clock) -> None:
    """A status where there still is one; else an event that the client's library raises."""
    engine = ScriptedEngine(errors={2: NumericalError("not a number")})
    async with serve_in_memory(engine) as server:
        answer = await Client(server.connect()).ask("POST", "/v1/chat/completions", CHAT)
        assert (answer.status, answer.json()["error"]["code"]) == (500, "numerical_error")
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        got = await events.rest()
        assert got[2].json()["error"]["code"] == "numerical_error"
        assert [event.id for event in got] == ["1", "2", "3", "5"]


async def test_completions_keep_an_idle_connection_awake(autojump_clock) -> None:
    """A comment whenever nothing else was sent for a while: no proxy thinks that it is over."""
    engine = ScriptedEngine()
    async with serve_in_memory(engine, step_s=20) as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        assert len(await events.rest()) == 6
        assert len(events.comments) >= 5


async def test_completions_without_durability_have_no_ids(autojump_clock) -> None:
    """What can't be read again doesn't look as if it could, and ends with its client."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine, config=Config(model_path="m", durability="none")) as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        assert (await events.next()).id == ""
        await events.client.stream.aclose()
        await trio.sleep(1)
        assert engine.active == ()


async def test_completions_broken_off_by_a_drain_go_on_elsewhere(autojump_clock) -> None:
    """No end is said, so nobody takes half of it for all."""
    journal = MemoryJournal()
    body = {**CHAT, "stream": True}
    got = []
    async with serve_in_memory(ScriptedEngine(["x"] * 2000), journal=journal) as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", body, Idempotency_Key="k")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.door.drain, 3)
            with pytest.raises(h11.RemoteProtocolError):
                await events.rest(got)
    assert 100 < len(got) < 2000
    async with serve_in_memory(ScriptedEngine(["x"] * 2000), journal=journal) as server:
        events = Events(Client(server.connect()))
        await events.ask("POST", "/v1/chat/completions", body, Idempotency_Key="k", Last_Event_ID=got[-1].id)
        got += await events.rest()
    assert [event.id for event in got] == [*map(str, range(1, 2002)), "2003"]


async def test_completions_whose_session_is_lost_may_be_asked_for_again(autojump_clock) -> None:
    """Whole: 503 and when to come back; as events: no end."""
    async with serve_in_memory(ScriptedEngine(["x"] * 1000)) as server:
        whole, events = Client(server.connect()), Events(Client(server.connect()))
        await whole.send("POST", "/v1/chat/completions", CHAT, Idempotency_Key="one")
        await events.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True}, Idempotency_Key="two")
        await trio.sleep(0.5)
        for session in tuple(server.registry._sessions.values()):
            session.lose("somebody else has it")
        answer = await whole.read()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        with pytest.raises(h11.RemoteProtocolError):
            await events.rest()
        answer = await Client(server.connect()).ask(
            "POST", "/v1/chat/completions", CHAT, Idempotency_Key="one"
        )
        assert answer.json()["usage"]["completion_tokens"] == 1000


async def test_completions_that_failed_for_now_say_so_once(autojump_clock) -> None:
    """The engine's failure is worth a new request; under a key the same one would find the same end."""
    for headers, retry in (({}, "true"), ({"Idempotency_Key": "k"}, "false")):
        engine = ScriptedEngine(errors={1: OutOfDeviceMemory("no room")})
        async with serve_in_memory(engine) as server:
            answer = await Client(server.connect()).ask("POST", "/v1/chat/completions", CHAT, **headers)
            assert (answer.status, answer.headers["x-should-retry"]) == (503, retry)

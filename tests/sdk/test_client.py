"""The async client: requests in, connections when needed, and a clean end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    AuthenticationError,
    ClientClosed,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from seedance_sdk.limits import Limits
from seedance_sdk.testing import Answer, Cut, ErrorCode, Refusal, ScriptedServer
from tests.sdk.hand_server import HandServer

HI: Any = [{"role": "user", "content": "Hi"}]


async def test_chat_returns_a_completion_or_a_stream() -> None:
    """``stream`` decides, as in OpenAI's client."""
    server = ScriptedServer(Answer("a", "b"), Answer("c"))
    async with AsyncSeedanceClient(connector=server) as client:
        assert (await client.chat(messages=HI)).text == "ab"
        stream = await client.chat(messages=HI, stream=True, temperature=0.3)
        assert [chunk.delta async for chunk in stream] == ["c", ""]
    assert server.requests[1].sampling.temperature == 0.3
    assert server.connections == 0


async def test_complete_continues_text_or_ids() -> None:
    """Both inputs without a template."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        await client.complete(prompt="text")
        await client.complete(token_ids=[1, 2])
    assert [(request.prompt, request.token_ids) for request in server.requests] == [
        ("text", None),
        (None, (1, 2)),
    ]


async def test_client_connects_once_for_all_who_ask_at_once() -> None:
    """A hundred first requests are one connection, and each gets its own answer."""
    server = ScriptedServer(respond=lambda request: Answer(*(request.prompt or "")))
    texts: dict[str, str] = {}

    async def ask(client: AsyncSeedanceClient, prompt: str) -> None:
        texts[prompt] = (await client.complete(prompt=prompt)).text

    prompts = [f"prompt {number}" for number in range(100)]
    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(ask, client, prompt)
    assert texts == {prompt: prompt for prompt in prompts}
    assert len(server.endpoints) == 1


async def test_client_goes_on_after_a_lost_connection(autojump_clock: trio.testing.MockClock) -> None:
    """A cut in the middle costs a reconnect, for all streams together, and no piece."""
    server = ScriptedServer(Answer("a", Cut(1011), "b"), Answer("c", Cut(), "d"))
    async with AsyncSeedanceClient(connector=server) as client:
        assert (await client.complete(prompt="x")).text == "ab"
        assert (await client.complete(prompt="y")).text == "cd"
    assert len(server.endpoints) == 3
    assert len(server.requests) == 2


async def test_client_takes_a_new_session_after_a_final_end() -> None:
    """The stream in the middle fails with the reason; the next request begins anew."""
    server = ScriptedServer(Answer("a", close_code=1008), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(PermissionDenied) as caught:
            await client.complete(prompt="x")
        assert (caught.value.partial, caught.value.close_code) == ("a", 1008)
        assert (await client.complete(prompt="y")).text == "b"
    assert len(server.endpoints) == 2


async def test_client_connects_anew_after_an_idle_connection_was_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection that ended between requests costs the next one nothing."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        await client.complete(prompt="x")
        server.close(1001)
        await trio.sleep(3600)
        assert len(server.endpoints) == 1  # nobody needs a connection, so none is made
        assert (await client.complete(prompt="y")).text == "b"


async def test_client_goes_elsewhere_after_goaway_while_old_streams_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A draining server finishes what it has; new requests get a new connection."""
    server = ScriptedServer(Answer(*"abc", delay_s=1), Answer("new"))
    async with AsyncSeedanceClient(connector=server) as client:
        old = await client.complete(prompt="x", stream=True)
        await server.go_away()
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.complete(prompt="y")).text == "new"
        assert server.connections == 2
        assert (await old.collect()).text == "abc"
        await trio.sleep(1)
        assert server.connections == 1


async def test_refusal_is_typed_and_the_connection_stays() -> None:
    """A refused request costs nothing but itself."""
    refusal = Refusal(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "9000 of 8192 tokens", field="messages")
    server = ScriptedServer(refusal, Answer("a"))
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(ContextLengthExceeded, match="9000 of 8192") as caught:
            await client.chat(messages=HI, stream=True)
        assert (caught.value.field, caught.value.code) == ("messages", ErrorCode.CONTEXT_LENGTH_EXCEEDED)
        assert (await client.chat(messages=HI)).text == "a"
    assert len(server.endpoints) == 1


async def test_refused_upgrade_reaches_every_waiter() -> None:
    """All who waited for the connection learn why there is none, each with an error of its own."""
    server = ScriptedServer(refuse_status=401)
    errors = []

    async def ask(client: AsyncSeedanceClient) -> None:
        with pytest.raises(AuthenticationError) as caught:
            await client.chat(messages=HI)
        errors.append(caught.value)

    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, client)
    assert len({id(error) for error in errors}) == 5
    assert len(server.endpoints) == 1


async def test_silent_server_ends_in_a_timeout(autojump_clock: trio.testing.MockClock) -> None:
    """``timeout`` and ``deadline`` bound the wait for the stream's beginning too."""
    server = HandServer()
    async with AsyncSeedanceClient(connector=server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(server.greet)
        cases: list[tuple[dict[str, Any], type[Exception], float]] = [
            ({"timeout": 3.0}, RequestTimeout, 3),
            ({"deadline": 2.0}, DeadlineExceeded, 2),
            ({}, RequestTimeout, 120),
        ]
        for options, kind, seconds in cases:
            began = trio.current_time()
            with pytest.raises(kind):
                await client.chat(messages=HI, **options)
            assert trio.current_time() - began == pytest.approx(seconds)


async def test_cancelled_request_is_cancelled_on_the_server(autojump_clock: trio.testing.MockClock) -> None:
    """A caller that is cancelled leaves nothing running."""
    server = ScriptedServer(Answer("a", endless=True))
    async with AsyncSeedanceClient(connector=server) as client:
        with trio.move_on_after(1):
            await client.complete(prompt="x")
        await trio.sleep(1)
        assert server.cancelled == [1]


async def test_leaving_the_client_ends_streams_and_says_goodbye() -> None:
    """Readers in other tasks get ClientClosed; the server hears BYE; no connection is left."""
    server = ScriptedServer(Answer("a", endless=True))

    async def read(stream: Any) -> None:
        with pytest.raises(ClientClosed):
            await stream.collect()

    async with trio.open_nursery() as nursery, AsyncSeedanceClient(connector=server) as client:
        nursery.start_soon(read, await client.complete(prompt="x", stream=True))
        await trio.testing.wait_all_tasks_blocked()
    assert server.connections == 0


async def test_client_outside_its_context_says_what_to_do() -> None:
    """Used before, after, or twice: a clear error each time."""
    client = AsyncSeedanceClient(connector=ScriptedServer())
    with pytest.raises(ClientClosed, match="async with"):
        await client.chat(messages=HI)
    async with client:
        pass
    with pytest.raises(ClientClosed, match="is closed"):
        await client.chat(messages=HI)
    with pytest.raises(ClientClosed, match="once"):
        async with client:
            pass


async def test_users_own_exception_is_not_wrapped_in_a_group() -> None:
    """The client's nursery is invisible: what the body raises is what comes out."""
    server = ScriptedServer(Answer("a", endless=True))

    async def use() -> None:
        async with AsyncSeedanceClient(connector=server) as client:
            await client.complete(prompt="x", stream=True)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await use()
    assert server.connections == 0


@pytest.mark.parametrize("greets", [True, False])
async def test_cancelled_body_leaves_at_once(greets: bool, autojump_clock: trio.testing.MockClock) -> None:
    """Cancellation waits for no goodbye, whatever the server does."""
    server = HandServer()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        if greets:
            nursery.start_soon(server.greet)
        with trio.move_on_after(1) as scope:
            async with AsyncSeedanceClient(connector=server) as client:
                await client.chat(messages=HI)
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(1)


def test_environment_gives_address_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """``SEEDANCE_URL`` and ``SEEDANCE_API_KEY`` are defaults; arguments win; the key is shown nowhere."""
    monkeypatch.setenv("SEEDANCE_URL", "wss://h.example/v1/chat")
    monkeypatch.setenv("SEEDANCE_API_KEY", "sk-env")
    client = AsyncSeedanceClient()
    assert client._endpoint.url == "wss://h.example/v1/chat"
    assert client._endpoint.headers["Authorization"] == "Bearer sk-env"
    assert "sk-env" not in repr(client)
    other = AsyncSeedanceClient("ws://other", api_key="sk-arg")
    assert other._endpoint.headers["Authorization"] == "Bearer sk-arg"
    monkeypatch.delenv("SEEDANCE_URL")
    monkeypatch.delenv("SEEDANCE_API_KEY")
    assert AsyncSeedanceClient()._endpoint.url == "ws://localhost:8080/v1/chat"
    assert "Authorization" not in AsyncSeedanceClient()._endpoint.headers


async def test_bad_arguments_fail_before_anything_is_sent() -> None:
    """The caller's own mistakes need no server."""
    server = ScriptedServer()
    async with AsyncSeedanceClient(connector=server) as client:
        misspelt: dict[str, Any] = {"heat": 1}
        with pytest.raises(TypeError, match="heat"):
            await client.chat(messages=HI, **misspelt)
        with pytest.raises(InvalidRequest):
            await client.chat(messages=[{"role": "user", "content": 5}])  # type: ignore[typeddict-item]
    assert server.endpoints == []


@pytest.mark.parametrize("subprotocol", ["seedance.v1", "seedance.v1.json", "seedance.v1.raw"])
async def test_every_encoding_carries_the_same_answer(subprotocol: str) -> None:
    """The encoding is a matter of taste."""
    text = ["Hé", "llo 🦊", "\n\n", "event: x"]
    server = ScriptedServer(Answer(*text))
    async with AsyncSeedanceClient(connector=server, subprotocol=subprotocol) as client:
        assert (await client.chat(messages=HI)).text == "".join(text)


async def test_conversation_goes_on_from_what_a_call_returned(autojump_clock: trio.testing.MockClock) -> None:
    """Completion, stream or number: the next request names the turn before it, over cuts too."""
    server = ScriptedServer(*(Answer("a", Cut(), "b") for _ in range(4)))
    async with AsyncSeedanceClient(connector=server) as client:
        turn = await client.complete(prompt="1")
        stream = await client.complete(prompt="2", stream=True, continues=turn)
        await stream.collect()
        await client.complete(prompt="3", continues=stream)
        await client.complete(prompt="4", continues=3)
    assert [request.continues for request in server.requests] == [None, 1, 2, 3]


async def test_conversation_stays_in_its_session_while_others_go_elsewhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Turns are known where they were made: a draining server's conversations come back when it does."""
    server = ScriptedServer(respond=lambda request: Answer(request.prompt or "", delay_s=1))
    async with AsyncSeedanceClient(connector=server) as client:
        old = await client.complete(prompt="old", stream=True)
        await server.go_away()
        await trio.testing.wait_all_tasks_blocked()
        new = await client.complete(prompt="new", stream=True)
        assert new.session_id != old.session_id
        turns = [await stream.collect() for stream in (old, new)]
        for turn in turns:
            following = await client.complete(prompt="next", continues=turn)
            assert (following.session_id, following.id) == (turn.session_id, 2)


async def test_conversation_that_is_not_known_is_an_error_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another client's turn, or one of a session that is gone, is never taken for one of this session."""
    server = ScriptedServer(*(Answer("a") for _ in range(4)))
    async with AsyncSeedanceClient(connector=server) as first:
        turn = await first.complete(prompt="x")
    async with AsyncSeedanceClient(connector=server) as second:
        for unknown in (turn, 1):
            with pytest.raises(StreamNotFound):
                await second.complete(prompt="y", continues=unknown)
        lost = await second.complete(prompt="x")
        server.restart(forget=True)
        await trio.sleep(1)
        with pytest.raises(StreamNotFound):  # the client learns it when it asks
            await second.complete(prompt="y", continues=lost)
        assert (await second.complete(prompt="z")).text == "a"
        with pytest.raises(StreamNotFound):
            await second.complete(prompt="y", continues=lost)
    assert [request.prompt for request in server.requests] == ["x", "x", "z"]


async def test_client_keeps_a_few_sessions_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    """However often servers leave, what is kept for later turns is bounded."""
    server = ScriptedServer(respond=lambda request: Answer("a", delay_s=1))
    async with AsyncSeedanceClient(connector=server, limits=Limits(max_sessions=3)) as client:
        turns = []
        for _ in range(10):
            stream = await client.complete(prompt="x", stream=True)
            await server.go_away()
            await trio.testing.wait_all_tasks_blocked()
            other = await client.complete(prompt="y", stream=True)
            turns += [await stream.collect(), await other.collect()]
            assert len(client._sessions) <= 3
        await client.complete(prompt="z", continues=turns[-1])
        with pytest.raises(StreamNotFound):
            await client.complete(prompt="z", continues=turns[0])


@pytest.mark.parametrize("method", [AsyncSeedanceClient.chat, AsyncSeedanceClient.complete])
def test_every_method_takes_keywords_only(method: Callable[..., Any]) -> None:
    """Positional arguments could never be reordered later."""
    kinds = {parameter.kind for parameter in list(inspect.signature(method).parameters.values())[1:]}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}

"""The async client: requests in, connections when needed, and a clean end."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    ClientClosed,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    RequestTimeout,
)
from seedance_sdk.testing import Answer, ErrorCode, Refusal, ScriptedServer
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


@pytest.mark.parametrize("method", [AsyncSeedanceClient.chat, AsyncSeedanceClient.complete])
def test_every_method_takes_keywords_only(method: Callable[..., Any]) -> None:
    """Positional arguments could never be reordered later."""
    kinds = {parameter.kind for parameter in list(inspect.signature(method).parameters.values())[1:]}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


# ---- on asyncio; what it has in common with the others is tested in test_face


def streaming(*script: Answer, **settings: Any) -> tuple[ScriptedServer, AsyncSeedanceClient]:
    server = ScriptedServer(*script)
    return server, AsyncSeedanceClient(connector=server, dice=lambda: 0.0, **settings)


async def eventually(condition: Callable[[], object]) -> None:
    """Waits for what the background thread is about to do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another thread's doing
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("doing", ["collecting", "opening", "reading"])
def test_asyncio_task_that_is_cancelled_cancels_its_generation(doing: str) -> None:
    """Whatever it was doing: the model does not go on for nobody, and the client goes on."""

    async def work(client: AsyncSeedanceClient) -> None:
        if doing == "collecting":
            await client.complete(prompt="x")
        else:
            async for _ in await client.complete(prompt="x", stream=True):
                pass

    async def main() -> None:
        answer = Answer("a", endless=True, delay_s=0.05 if doing == "opening" else 0.0)
        server, client = streaming(answer, Answer("next"))
        async with client:
            task = asyncio.create_task(work(client))
            await eventually(lambda: server.requests)
            if doing != "opening":
                await eventually(lambda: server.acks)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            gc.collect()
            assert (await client.complete(prompt="y")).text == "next"
            await eventually(lambda: server.cancelled == [1])

    asyncio.run(main())


def test_asyncio_wait_that_is_given_up_loses_nothing() -> None:
    """A read in ``wait_for`` can be repeated until something comes, however often it is cut short."""

    async def main() -> None:
        pieces = [str(number) for number in range(40)]
        _, client = streaming(Answer(*pieces, delay_s=0.002))
        async with client:
            stream = await client.complete(prompt="x", stream=True)
            taken: list[str] = []
            short = 0
            while True:
                try:
                    chunk = await asyncio.wait_for(stream.receive(), 0.0015)
                except TimeoutError:
                    short += 1
                    continue
                if chunk is None:
                    break
                taken.append(chunk.delta)
                assert stream.text == "".join(taken)
                assert stream.bookmark.last_processed_id == min(chunk.id, 40)  # never behind the end
            assert taken == [*pieces, ""]
            assert short > 0

    asyncio.run(main())


def test_asyncio_reader_that_is_slow_holds_back_its_own_stream_only() -> None:
    """Back-pressure is real: what is not asked for is not sent beyond the window."""

    async def main() -> None:
        _, client = streaming(Answer(*("x" for _ in range(1000))), Answer(*"other"))
        async with client:
            slow = await client.complete(prompt="x", stream=True)
            await slow.receive()
            assert (await client.complete(prompt="y")).text == "other"
            buffered = len(slow._reading._generation._arrivals)
            assert buffered <= 128
            assert len((await slow.collect()).text) == 1000

    asyncio.run(main())


def test_asyncio_client_leaves_no_thread_and_says_goodbye() -> None:
    """Live readers in other tasks get ClientClosed; the thread is gone when the client is left."""

    async def main() -> None:
        server, client = streaming(Answer("a", endless=True))
        thread = client._portal._host.thread
        async with client:
            stream = await client.complete(prompt="x", stream=True)
            reader = asyncio.create_task(stream.collect())
            await eventually(lambda: server.acks)
        with pytest.raises(ClientClosed):
            await reader
        assert not thread.is_alive()
        assert server.connections == 0
        with pytest.raises(ClientClosed, match="once"):
            async with client:
                pass

    asyncio.run(main())


def test_asyncio_body_that_is_cancelled_closes_all_the_same() -> None:
    """Cancelled while it is left, the client still ends, by itself."""

    async def main() -> None:
        server, client = streaming(Answer("a", endless=True))

        async def use() -> None:
            async with client:
                await client.complete(prompt="x")

        task = asyncio.create_task(use())
        await eventually(lambda: server.acks)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not client._portal._host.thread.is_alive())
        assert server.connections == 0

    asyncio.run(main())


def test_asyncio_client_serves_one_loop_after_the_other() -> None:
    """Notebooks and tests run many loops; streams live in the client's thread, not in any of them."""
    _, client = streaming(Answer("a", "b"))
    loops = [asyncio.new_event_loop() for _ in range(3)]
    try:
        loops[0].run_until_complete(client.__aenter__())
        stream: Any = loops[0].run_until_complete(client.complete(prompt="x", stream=True))
        assert loops[1].run_until_complete(stream.receive()).delta == "a"
        assert loops[2].run_until_complete(stream.collect()).text == "ab"
        loops[2].run_until_complete(client.__aexit__(None, None, None))
    finally:
        for loop in loops:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

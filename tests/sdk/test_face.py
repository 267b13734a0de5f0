"""The same scenarios on every face: trio, asyncio and threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
import trio

from seedance_sdk.blocking import SeedanceClient
from seedance_sdk.circuit_breaker import CircuitState
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    ClientClosed,
    ConnectFailed,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    StreamClosed,
    StreamNotFound,
)
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.stream_events import Flow, FlowAction, Phase, Reconnected, Status
from seedance_sdk.testing import Answer, Cut, ErrorCode, Refusal, ScriptedServer
from seedance_sdk.transport import Connector
from tests.sdk import threads

HI: Any = [{"role": "user", "content": "Hi"}]

Make: TypeAlias = Callable[..., Any]
Scenario: TypeAlias = Callable[[Make], Coroutine[Any, Any, None]]

FACES: dict[str, tuple[Callable[[Any], Any], Make]] = {
    "trio": (lambda coroutine: trio.run(lambda: coroutine), AsyncSeedanceClient),
    "asyncio": (asyncio.run, AsyncSeedanceClient),
    "threads": (threads.run, lambda *args, **settings: threads.Clothed(SeedanceClient(*args, **settings))),
}


@pytest.fixture(params=FACES)
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Plays a scenario on one face. It gets what makes a client, whose waits have no jitter."""
    run, face = FACES[request.param]

    def make(connector: Connector, **settings: Any) -> Any:
        return face(connector=connector, dice=lambda: 0.0, **settings)

    return lambda scenario: run(scenario(make))


Play: TypeAlias = Callable[[Scenario], None]


def test_face_answers_whole_and_piece_by_piece(play: Play) -> None:
    """One answer, both ways to take it."""

    async def scenario(make: Make) -> None:
        async with make(ScriptedServer(Answer("a", "é"), Answer("b", "c"), Answer("d"))) as client:
            whole = await client.chat(messages=HI, extra={"user": 7})
            assert (whole.text, whole.finish_reason, whole.extra) == ("aé", "stop", {"user": 7})
            stream = await client.complete(prompt="x", stream=True, extra={"user": 8})
            chunks = [chunk async for chunk in stream]
            assert [chunk.delta for chunk in chunks] == ["b", "c", ""]
            assert chunks[-1].usage is not None
            assert (stream.text, stream.id, stream.last_id, stream.received_bytes) == ("bc", 2, 3, 2)
            assert stream.extra == {"user": 8}
            assert await stream.receive() is None
            assert (await client.complete(token_ids=[1])).text == "d"
            assert client.circuit is CircuitState.CLOSED

    play(scenario)


def test_face_survives_cuts(play: Play) -> None:
    """The loop goes on, each piece once; the hook hears of it."""
    heard: list[ReconnectDetails] = []

    async def scenario(make: Make) -> None:
        server = ScriptedServer(Answer("a", Cut(1012), "b", Cut(1012), "c"))
        async with make(server, on_reconnect=heard.append) as client:
            stream = await client.chat(messages=HI, stream=True)
            assert [chunk.delta async for chunk in stream] == ["a", "b", "c", ""]
            assert (stream.text, stream.reconnects, len(server.requests)) == ("abc", 2, 1)

    play(scenario)
    assert [details.caused_by.close_code for details in heard] == [1012, 1012]


def test_face_tells_what_happens_beside_the_text(play: Play) -> None:
    """Places in the queue, pace and reconnects, in their order, without holding the text up."""

    async def scenario(make: Make) -> None:
        answer = Answer(
            Status(stream_id=0, phase=Phase.QUEUED, position=2),
            "a",
            Cut(1012),
            Flow(stream_id=0, action=FlowAction.PAUSE, window=32),
            "b",
        )
        async with make(ScriptedServer(answer)) as client:
            stream = await client.chat(messages=HI, stream=True)
            assert (await stream.collect()).text == "ab"
            events = [event async for event in stream.events()]
            assert [type(event) for event in events] == [Status, ReconnectDetails, Reconnected, Flow]
            assert events[0] == Status(stream_id=1, phase=Phase.QUEUED, position=2)
            assert (events[2].reconnects, events[3].action) == (1, FlowAction.PAUSE)
            assert stream.events().dropped == 0

    play(scenario)


def test_face_leaves_streams_in_every_way(play: Play) -> None:
    """Each way cancels on the server, but for the one that leaves it to another reader."""

    async def scenario(make: Make) -> None:
        server = ScriptedServer(*(Answer("a", "b", endless=True) for _ in range(4)))
        async with make(server) as client:
            first = await client.complete(prompt="1", stream=True)
            assert (await first.receive()).delta == "a"
            await first.aclose()
            with pytest.raises(StreamClosed):
                await first.receive()
            async with await client.complete(prompt="2", stream=True) as second:
                assert (await second.receive()).delta == "a"
            third = await client.complete(prompt="3", stream=True)
            third.cancel()
            assert [chunk.finish_reason async for chunk in third][-1] == "cancelled"
            fourth = await client.complete(prompt="4", stream=True)
            assert (await fourth.receive()).delta == "a"
            assert fourth.bookmark.last_processed_id == 1
            place = fourth.detach().to_str()
        assert sorted(server.cancelled) == [1, 2, 3]
        assert fourth.bookmark.to_str() == place  # after the client was closed, too
        await first.aclose()
        async with second:
            pass
        async with make(server) as other:
            resumed = await other.resume(place)
            assert (await resumed.receive()).delta == "b"

    play(scenario)


def test_face_bounds_every_wait(play: Play) -> None:
    """``timeout`` and ``deadline`` end a wait with their own errors, and with what had come."""

    async def scenario(make: Make) -> None:
        server = ScriptedServer(Answer("a", endless=True), Answer("b", endless=True))
        async with make(server) as client:
            with pytest.raises(RequestTimeout) as silent:
                await client.complete(prompt="x", timeout=0.05)
            with pytest.raises(DeadlineExceeded) as late:
                await client.complete(prompt="x", deadline=0.05)
            assert (silent.value.partial, late.value.partial) == ("a", "b")

    play(scenario)


def test_face_raises_what_is_wrong(play: Play) -> None:
    """The caller's mistakes, the server's refusals, no server, and a client that is closed."""

    async def scenario(make: Make) -> None:
        refusal = Refusal(ErrorCode.OVERLOADED, "full", retryable=True, retry_after_ms=5)
        server = ScriptedServer(refusal, Answer("a"))
        client = make(server)
        async with client:
            with pytest.raises(TypeError, match="heat"):
                await client.chat(messages=HI, heat=1)
            with pytest.raises(InvalidRequest):
                await client.chat(messages="Hi")
            with pytest.raises(Overloaded, match="full") as full:
                await client.chat(messages=HI, stream=True)
            assert full.value.retry_after_ms == 5
            turn = await client.complete(prompt="x")
            with pytest.raises(StreamNotFound):
                await client.complete(prompt="x", continues=Elsewhere())
            assert turn.text == "a"
        with pytest.raises(ClientClosed):
            await client.chat(messages=HI)
        stopped = ScriptedServer()
        stopped.stop()
        async with make(stopped) as nowhere:
            with pytest.raises(ConnectFailed):
                await nowhere.chat(messages=HI)

    play(scenario)


class Elsewhere:
    """A turn of another client."""

    id = 1
    session_id = "elsewhere"


def test_face_reports(play: Play) -> None:
    """What users did reaches the server, in order."""

    async def scenario(make: Make) -> None:
        server = ScriptedServer()
        async with make(server) as client:
            client.report("click", "here", user_id=7)
            client.report("leave")
            with pytest.raises(InvalidRequest):
                client.report("x" * 257)
            await client.flush_reports()
            assert [event.action for event in server.reports] == ["click", "leave"]

    play(scenario)


def test_face_tells_its_latency_connections_and_endpoints(play: Play) -> None:
    """Without waiting, whatever the loop: the figures are for any thread to read."""

    async def scenario(make: Make) -> None:
        async with make(ScriptedServer(Answer("a", "b"))) as client:
            await client.complete(prompt="x")
            report = client.latency.report()
            assert (report.answers.finished, report.answers.ttft.count, report.answers.itl.count) == (1, 1, 1)
            assert (client.statistics().connections, client.statistics().opened) == (1, 1)
            (endpoint,) = client.endpoints
            assert (endpoint.circuit, endpoint.routing.handshakes) == (CircuitState.CLOSED, 1)

    play(scenario)


def test_face_holds_conversations(play: Play) -> None:
    """Turns continue each other, over a cut too, and are told again to a server that forgot them."""

    async def scenario(make: Make) -> None:
        server = ScriptedServer(Answer("one"), Answer("t", Cut(1012), "wo"), Answer("three"))
        async with make(server) as client:
            conversation = client.conversation(system="Be brief.", temperature=0)
            assert (await conversation.say("1?")).text == "one"
            async with await conversation.say("2?", stream=True, temperature=1) as stream:
                assert "".join([chunk.delta async for chunk in stream]) == "two"
            server.restart(forget=True)
            assert (await conversation.say("3?")).text == "three"
            assert conversation.resends == 1
            told = [(message["role"], message["content"]) for message in conversation.messages]
            assert told == [
                ("system", "Be brief."),
                ("user", "1?"),
                ("assistant", "one"),
                ("user", "2?"),
                ("assistant", "two"),
                ("user", "3?"),
                ("assistant", "three"),
            ]
            first, second, third = server.requests
            assert [request.continues for request in server.requests] == [None, 1, None]
            assert [len(request.messages) for request in server.requests] == [2, 1, 6]
            assert [request.sampling.temperature for request in (first, second, third)] == [0, 1, 0]

    play(scenario)


LEFT_OPEN = """
import asyncio, atexit
atexit.register(lambda: print("connections left:", server.connections))  # runs after what is registered later
from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.testing import Answer, ScriptedServer
server = ScriptedServer(Answer("a", endless=True))
client = AsyncSeedanceClient(connector=server)

async def main():
    await client.__aenter__()
    stream = await client.complete(prompt="x", stream=True)
    print((await stream.receive()).delta)

asyncio.run(main())
"""

FORKED = """
import os
from seedance_sdk import ClientClosed, SeedanceClient
from seedance_sdk.testing import Answer, ScriptedServer
server = ScriptedServer(Answer("a", "b"), Answer("c"))
client = SeedanceClient(connector=server)
stream = client.complete(prompt="x", stream=True)
print(next(stream).delta, flush=True)
child = os.fork()
if not child:
    for use in (client.complete, lambda **_: next(stream), lambda **_: client.report("x")):
        try:
            use(prompt="y")
        except ClientClosed as error:
            print(error, flush=True)
    client.close()
    with SeedanceClient(connector=ScriptedServer(Answer("fresh"))) as another:
        print(another.complete(prompt="z").text, flush=True)
    del stream, client
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
print(stream.collect().text, client.complete(prompt="y").text, flush=True)
client.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(LEFT_OPEN, ["a", "connections left: 0"], id="left open"),
        pytest.param(
            FORKED,
            ["a", *3 * ["the client was made before a fork; make one in each process"], "fresh", "ab c"],
            id="forked",
        ),
    ],
)
def test_process_ends_clean_and_shares_no_socket(program: str, printed: list[str]) -> None:
    """A client left open says goodbye at exit; a forked child makes its own and disturbs nobody."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, printed, "")

"""The public in-memory server: a script in, the real protocol out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
import trio.testing

from seedance_sdk import AsyncSeedanceClient, SeedanceClient
from seedance_sdk.errors import (
    ConnectFailed,
    ConnectionLost,
    InternalServerError,
    NumericalError,
    Overloaded,
    PermissionDenied,
    RateLimited,
    StreamNotFound,
)
from seedance_sdk.testing import (
    Answer,
    Cut,
    ErrorCode,
    FinishReason,
    Phase,
    Refusal,
    ScriptedServer,
    Status,
)


async def test_script_is_followed_in_order_and_its_end_is_an_error() -> None:
    """A test that asks more than it scripted is told so."""
    server = ScriptedServer(
        Answer("a", finish_reason=FinishReason.LENGTH),
        Refusal(ErrorCode.RATE_LIMITED, "slow down", retryable=True, retry_after_ms=10),
        Answer(error=ErrorCode.NUMERICAL_ERROR),
        Answer("b", close_code=4403),
    )
    async with AsyncSeedanceClient(connector=server) as client:
        completion = await client.complete(prompt="1")
        assert (completion.text, completion.finish_reason) == ("a", "length")
        with pytest.raises(RateLimited, match="slow down") as limited:
            await client.complete(prompt="2")
        assert (limited.value.retryable, limited.value.retry_after_ms) == (True, 10)
        with pytest.raises(NumericalError):
            await client.complete(prompt="3")
        with pytest.raises(PermissionDenied):
            await client.complete(prompt="4")
        with pytest.raises(InternalServerError, match="no answer to request 5"):
            await client.complete(prompt="5")
    assert [request.prompt for request in server.requests] == ["1", "2", "3", "4", "5"]


async def test_respond_decides_by_the_request() -> None:
    """Where order is not known, the answer follows from the question."""
    server = ScriptedServer(respond=lambda request: Answer((request.prompt or "").upper()))
    async with AsyncSeedanceClient(connector=server) as client:
        assert (await client.complete(prompt="abc")).text == "ABC"


async def test_delay_follows_the_virtual_clock(autojump_clock: trio.testing.MockClock) -> None:
    """An hour of streaming is tested in no time."""
    server = ScriptedServer(Answer(*"abc", delay_s=60))
    async with AsyncSeedanceClient(connector=server) as client:
        began = trio.current_time()
        await client.complete(prompt="x")
        assert trio.current_time() - began == pytest.approx(240)


async def test_window_is_kept_towards_a_reader_that_does_not_read() -> None:
    """The double holds back as the real server does."""
    server = ScriptedServer(Answer(*("x" * 1000)))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        await trio.testing.wait_all_tasks_blocked()
        assert len(stream._reading._generation._arrivals) == 32
        assert (await stream.collect()).text == "x" * 1000
    taken = [pair for _, ack in server.acks for pair in ack.processed]
    assert taken[-1] == (1, 1001)


async def test_cut_is_survived_by_clients_and_their_streams(autojump_clock: trio.testing.MockClock) -> None:
    """A cut at a moment of the test's choice, or between two pieces of the script."""
    server = ScriptedServer(Answer("a", "b", Cut(), "c", Cut(1012), "d", delay_s=1))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        await stream.receive()
        server.cut()
        assert (await stream.collect()).text == "abcd"
        assert stream.reconnects == 3
    assert len(server.requests) == 1


@pytest.mark.parametrize("forget", [False, True])
async def test_restart_keeps_streams_unless_it_forgets_them(
    forget: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Both kinds of restart can be played: with the journal, and without."""
    server = ScriptedServer(Answer("a", "b", delay_s=1))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        await stream.receive()
        server.restart(forget=forget)
        if forget:
            with pytest.raises(StreamNotFound):
                await stream.collect()
        else:
            assert (await stream.collect()).text == "ab"


async def test_stopped_server_takes_no_connections(autojump_clock: trio.testing.MockClock) -> None:
    """A server that is down is down for new clients too."""
    server = ScriptedServer(Answer("a"))
    server.stop()
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(ConnectFailed):
            await client.complete(prompt="x")
        server.start()
        assert (await client.complete(prompt="x")).text == "a"


async def test_server_that_is_not_durable_loses_streams_with_their_connection() -> None:
    """What a server without a journal does."""
    server = ScriptedServer(Answer("a", close_code=1006), Answer("b"), durable=False)
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.complete(prompt="x")
        assert caught.value.partial == "a"
        assert (await client.complete(prompt="x")).text == "b"


async def test_request_with_a_key_is_answered_once_in_whatever_session() -> None:
    """A program that starts afresh gets its answer again, unless its former self is still connected."""
    server = ScriptedServer(Answer("a", "b"), Answer("c"))
    async with AsyncSeedanceClient(connector=server) as first:
        assert (await first.complete(prompt="x", idempotency_key="k")).text == "ab"
        async with AsyncSeedanceClient(connector=server) as second:
            with pytest.raises(Overloaded) as caught:
                await second.complete(prompt="x", idempotency_key="k")
            assert caught.value.retryable
            assert (await second.complete(prompt="y")).text == "c"
    async with AsyncSeedanceClient(connector=server) as third:
        assert (await third.complete(prompt="x", idempotency_key="k")).text == "ab"
    assert [request.prompt for request in server.requests] == ["x", "y"]


async def test_script_tells_what_the_real_server_tells_beside_the_text() -> None:
    """Places in the queue and pace, under the stream's own number."""
    server = ScriptedServer(Answer(Status(stream_id=9, phase=Phase.QUEUED, position=1), "a"))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        events = stream.events()
        assert await anext(events) == Status(stream_id=1, phase=Phase.QUEUED, position=1)
        assert (await stream.collect()).text == "a"


def test_double_serves_the_blocking_client_too() -> None:
    """One double for both faces."""
    server = ScriptedServer(Answer("a"))
    with SeedanceClient(connector=server) as client:
        assert client.complete(prompt="x").text == "a"
    assert server.connections == 0


README = (Path(__file__).parents[2] / "seedance_sdk" / "README.md").read_text()
EXAMPLES = [
    code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "ScriptedServer" in code
]


@pytest.mark.slow  # real clock: a reconnect waits up to a quarter of a second
@pytest.mark.parametrize("example", EXAMPLES, ids=["bookmark", "reports", "latency", "testing"])
def test_example_of_the_readme_runs_as_written(example: str) -> None:
    """What the package's page shows is true."""
    exec(compile(example, "README.md", "exec"), {})

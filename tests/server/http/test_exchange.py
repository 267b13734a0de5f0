"""Tests of `seedance_server.http.exchange`: bodies in, answers out, each within its bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
import trio.testing
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

from seedance_server.guard import GuardedStream, GuardLimits
from seedance_server.http.connection import HttpConnection, HttpLimits
from seedance_server.http.refusal import Refusal
from seedance_server.request_head import read_head
from tests.server.http.probe import Client, read_all

GUARD = GuardLimits(
    before_accept_bytes=20_000,
    between_messages_bytes=100_000,
    bytes_per_second=1e9,
    burst_bytes=1_000_000,
    send_timeout_s=10,
    linger_s=1,
    linger_bytes=100_000,
)
LIMITS = HttpLimits(
    max_head_bytes=16_384,
    max_body_bytes=1000,
    head_timeout_s=5,
    idle_timeout_s=75,
    requests_per_second=50,
    request_burst=200,
)


async def echo(scope, receive, send) -> None:
    """Answers with what was sent."""
    try:
        body = await Request(scope, receive).body()
        response = PlainTextResponse(body)
    except Refusal as refusal:
        response = refusal.response()
    await response(scope, receive, send)


@asynccontextmanager
async def served(app) -> AsyncIterator[trio.abc.Stream]:
    """A connection to an application."""
    ours, theirs = trio.testing.memory_stream_pair()
    guard = GuardedStream(theirs, GUARD)

    async def serve() -> None:
        head = await read_head(guard, max_bytes=16_384)
        connection = HttpConnection(guard, lambda *_: nullcontext((app, {})), LIMITS, address="192.0.2.1")
        await connection.serve(head)
        await guard.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield ours
        nursery.cancel_scope.cancel()


async def test_exchange_hands_on_a_body_whole(autojump_clock) -> None:
    """Of known or unknown length, however it is cut; and then the next one."""
    chunked = (
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with served(echo) as stream:
        client = Client(stream)
        assert (await client.ask("POST", "/", b"x" * 1000)).body == b"x" * 1000
        assert (await client.ask("POST", "/", b"again")).body == b"again"
    async with served(echo) as stream:
        for byte in chunked:
            await stream.send_all(bytes([byte]))
        await trio.sleep(1)
        assert (await stream.receive_some(1000)).endswith(b"\r\n\r\nabcde")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf", 408),
    ],
)
async def test_exchange_refuses_a_body_that_is_too_large_broken_or_slow(
    autojump_clock, request_: bytes, status: int
) -> None:
    """And closes: what comes behind it can't be told from the next request."""
    async with served(echo) as stream:
        await stream.send_all(request_)
        assert (await read_all(stream)).startswith(b"HTTP/1.1 %d " % status)


async def test_exchange_asks_for_a_body_that_waits_to_be_asked_for(autojump_clock) -> None:
    """Some clients send ``Expect: 100-continue`` and nothing more."""
    async with served(echo) as stream:
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"ok")
        assert (await stream.receive_some(1000)).endswith(b"\r\n\r\nok")


async def test_exchange_breaks_the_connection_with_a_broken_answer(autojump_clock) -> None:
    """Half an answer must not look like a whole one."""

    async def half(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with served(half) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await read_all(stream)
        assert answer.endswith(b"4\r\nhalf\r\n")  # no last chunk


async def test_exchange_cancels_the_work_for_a_client_that_leaves(autojump_clock) -> None:
    """At once, not with the next thing to send."""
    cancelled = trio.Event()

    async def pieces():
        try:
            yield b"first"
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async def endless(scope, receive, send) -> None:
        await StreamingResponse(pieces())(scope, receive, send)

    async with served(endless) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"first" in await stream.receive_some(1000)
        await stream.aclose()
        with trio.fail_after(1):
            await cancelled.wait()

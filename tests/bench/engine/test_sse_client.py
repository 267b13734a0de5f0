"""Reading a stream of server-sent events, against a server that this file plays."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
import trio

from engine.http_peer import http_connect
from engine.sse_client import EventLines, PeerError, is_healthy, stream_completion
from engine.workload import Request

BODY = (
    b'data: {"choices":[{"text":"a\xc3\xa9"}]}\n\n'
    b": a comment\n"
    b'data: {"choices":[{"text":""}]}\r\n\r\n'
    b'data: {"choices":[{"text":"b"}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
    b"data: [DONE]\n\n"
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def serve(nursery: trio.Nursery, *pieces: bytes) -> tuple[int, list[bytes]]:
    """Answer every connection with these pieces, each sent on its own; gives the port and what was asked."""
    seen: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data or (b"POST" in data and not data.endswith(b"}")):
            data += await stream.receive_some()
        seen.append(data)
        for piece in pieces:
            await stream.send_all(piece)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handle, listeners)
    return listeners[0].socket.getsockname()[1], seen


@pytest.fixture
def ticking() -> Callable[[], float]:
    """A clock that advances by one second each time it is read."""
    times = iter(range(1000))
    return lambda: float(next(times))


@pytest.mark.parametrize("cut", range(1, len(BODY), 7))
def test_event_lines_are_whole_however_the_body_is_cut(cut: int) -> None:
    """Chunks of HTTP end where they like, also within a character."""
    lines = EventLines()
    found = [*lines.take(BODY[:cut]), *lines.take(BODY[cut:])]
    assert len(found) == 5
    assert json.loads(found[0]) == {"choices": [{"text": "aé"}]}
    assert found[-1] == "[DONE]"


async def test_completion_is_stamped_piece_by_piece(ticking: Callable[[], float]) -> None:
    """A piece counts from when it was read; one without text counts not at all."""
    first, rest = BODY[:40], BODY[40:]
    async with trio.open_nursery() as nursery:
        port, seen = await serve(nursery, HEAD, chunked(first, rest))
        answer = await stream_completion(port, {"temperature": 0}, Request("p", 3), ticking)
        nursery.cancel_scope.cancel()
    assert answer.text == "aéb"
    assert answer.tokens == 3
    assert answer.started_s == 0
    assert answer.arrivals_s == [1, 2]
    assert answer.ended_s == 2
    assert json.loads(seen[0].split(b"\r\n\r\n")[1]) == {
        "prompt": "p",
        "max_tokens": 3,
        "stream": True,
        "temperature": 0,
    }


async def _fail(pieces: list[bytes], ask: Callable[[int], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        port, _ = await serve(nursery, *pieces)
        await ask(port)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 7\r\n\r\nno such"], "status 400: no such"),
        ([HEAD, chunked(b"data: [DONE]\n\n")], "without a token"),
    ],
    ids=["refused", "empty"],
)
async def test_completion_says_what_a_server_answers_instead(pieces: list[bytes], words: str) -> None:
    """A peer that is asked wrongly is seen to be, not measured."""

    async def ask(port: int) -> None:
        with pytest.raises(PeerError, match=words):
            await stream_completion(port, {}, Request("p", 3))

    await _fail(pieces, ask)


@pytest.mark.parametrize("pieces", [[HEAD], [HEAD, chunked(BODY)[:60]]], ids=["at once", "half-way"])
async def test_answer_carries_the_error_when_the_server_hangs_up(pieces: list[bytes]) -> None:
    """A level with a lost answer must not get figures, so the loss arrives with the answer."""

    async def ask(port: int) -> None:
        async with http_connect(port, {})(1) as (one,):
            assert "RemoteProtocolError" in str((await one(Request("p", 3))).error)

    await _fail(pieces, ask)


async def test_answer_carries_the_error_that_an_event_names() -> None:
    """Servers report a failure in mid-stream as an event."""

    async def ask(port: int) -> None:
        answer = await stream_completion(port, {}, Request("p", 3))
        assert answer.error == '"out of memory"'

    event = b'data: {"choices":[{"text":"a"}]}\n\ndata: {"error":"out of memory"}\n\n'
    await _fail([HEAD, chunked(event)], ask)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
async def test_health_is_the_status_of_its_path(status: int, healthy: bool) -> None:
    """A server that is loading answers, but is not ready."""

    async def ask(port: int) -> None:
        assert await is_healthy(port, "/health") is healthy

    await _fail([b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status], ask)


async def test_health_is_bad_when_nobody_listens() -> None:
    """Until a server listens, it is waited for."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    assert not await is_healthy(port, "/health")

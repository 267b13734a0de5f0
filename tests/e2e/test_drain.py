"""A server that is told to stop: a real process, and readers that read, that don't, and that come back."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import h11
import pytest
import trio

from scripted_server import numbers
from seedance_wire.messages import Delta, Flush, GoAway, Welcome
from tests.faults.server_process import ServerProcess, numbers_server
from tests.server.http.probe import Client, Event, Events
from tests.server.wire_client import WireClient, http, wire_client

pytestmark = pytest.mark.slow

READY = b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
TOKENS = 450
"""With the time of a step that is more than the time that streams are given."""
SLACK_S = 5.0
"""Beyond the deadline: what a busy machine takes to notice that a process has ended."""


async def connect(server: ServerProcess) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", server.port)


async def connect_narrow(server: ServerProcess) -> trio.SocketStream:
    """A connection whose other end holds next to nothing that nobody reads."""
    narrow = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    await narrow.connect(("127.0.0.1", server.port))
    return trio.SocketStream(narrow)


@asynccontextmanager
async def stalled_client(server: ServerProcess) -> AsyncIterator[Welcome]:
    """Has a stream, then doesn't read a byte more, while so many pongs are due that no buffer holds them."""
    async with wire_client(await connect_narrow(server)) as client:
        await client.submit(sampling={"max_tokens": TOKENS})
        await client.accepted()
        client.acks = False
        stream = client.websocket._stream
        ping = b"\x89\xfd" + bytes(4) + b"x" * 125
        for _ in range(40):
            with trio.move_on_after(0.3) as patience:
                await stream.send_all(ping * 100)
            if patience.cancelled_caught:
                break
        yield client.welcome


async def read_on(client: WireClient, taken: list[Delta]) -> int:
    """Reads until the connection closes; returns the close code."""
    with suppress(Exception):
        while True:
            event = await client.receive()
            if isinstance(event, Delta):
                taken.append(event)
    return await client.close_code()


def text_of(frames: list[Delta]) -> str:
    return "".join(frame.text for frame in frames)


async def test_drain_ends_in_time_with_0_whoever_does_not_read(tmp_path: Path) -> None:
    """Streams go on, readiness is red, and what is left goes on from the journal; for the deaf reader too."""
    whole = "".join(numbers(TOKENS))
    async with numbers_server(
        tmp_path, "--shutdown-timeout", "3s", "--close-timeout", "300ms", step_ms=5
    ) as server:
        taken: list[Delta] = []
        async with stalled_client(server) as stalled, wire_client(await connect(server)) as reader:
            await reader.submit(sampling={"max_tokens": TOKENS})
            await reader.accepted()
            while len(taken) < 3:
                event = await reader.receive()
                if isinstance(event, Delta):
                    taken.append(event)
            server.signal(signal.SIGTERM)
            while not isinstance(event := await reader.receive(), GoAway):
                if isinstance(event, Delta):
                    taken.append(event)
            assert event.deadline_ms == 1500
            before = len(taken)
            answer = await http(await connect(server), READY)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"draining" in answer
            assert await read_on(reader, taken) == 1001
            assert len(taken) > before, "streams go on while the server drains"
            assert whole.startswith(text_of(taken))
            with trio.fail_after(3 + SLACK_S):
                assert await server.wait() == 0
        assert "Traceback" not in server.log
        assert "not all was closed in time" not in server.log
        server.start()
        await server.wait_ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_rest, server, reader.welcome, taken, whole)
            nursery.start_soon(check_rest, server, stalled, [], whole)


async def check_rest(server: ServerProcess, former: Welcome, had: list[Delta], whole: str) -> None:
    """Whoever was cut goes on where it was, in the next process."""
    async with wire_client(await connect(server), former=former) as client:
        assert client.welcome.session_present
        await client.resume(1, had)
        rest = await client.frames()
        assert isinstance(rest[-1], Flush)
        assert text_of([*had, *(frame for frame in rest if isinstance(frame, Delta))]) == whole


async def test_drain_ends_in_time_with_0_whoever_does_not_read_http(tmp_path: Path) -> None:
    """Answers over HTTP are no exception: one goes on, is broken off, and is read on in the next process."""
    asked = {"prompt": "count", "max_tokens": TOKENS, "stream": True}
    timing = ("--shutdown-timeout", "3s", "--close-timeout", "300ms")
    async with numbers_server(tmp_path, *timing, step_ms=5) as server:
        deaf = Client(await connect_narrow(server))
        await deaf.send("POST", "/v1/completions", {**asked, "n": 8})
        events, got = Events(Client(await connect(server))), list[Event]()
        head = await events.ask("POST", "/v1/completions", asked)
        for _ in range(3):
            got.append(await events.next())
        server.signal(signal.SIGTERM)
        await server.logged("shutting down")
        before = len(got)
        with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
            await events.rest(got)
        assert len(got) > before
        with trio.fail_after(3 + SLACK_S):
            assert await server.wait() == 0
        assert "Traceback" not in server.log
        assert "not all was closed in time" not in server.log
        for broken in (deaf, events.client):
            await broken.stream.aclose()
        server.start()
        await server.wait_ready()
        events = Events(Client(await connect(server)))
        name = dict(head.headers)[b"x-request-id"].decode()
        await events.ask("GET", f"/v1/streams/{name}", Last_Event_ID=got[-1].id)
        await events.rest(got)
        await events.client.stream.aclose()
    pieces = [choice["text"] for event in got[:-1] for choice in event.json()["choices"]]
    assert "".join(pieces) == "".join(numbers(TOKENS))


async def test_drain_ends_in_time_with_0_though_a_step_hangs(tmp_path: Path) -> None:
    """Whatever stands still, the deadline is kept, and a line says that it was needed."""
    async with numbers_server(tmp_path, "--shutdown-timeout", "1s", step_ms=60_000) as server:
        async with wire_client(await connect(server)) as client:
            await client.submit()
            await client.accepted()
            server.signal(signal.SIGTERM)
            with trio.fail_after(2 + SLACK_S):
                assert await server.wait() == 0
        assert "not all was closed in time" in server.log

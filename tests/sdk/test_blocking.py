"""The client for plain threads: the same answers, real back-pressure, and Ctrl-C."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seedance_sdk.blocking import Events, SeedanceClient, Stream
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import ClientClosed, ConnectFailed, PermissionDenied, StreamClosed
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.stream import AsyncEvents, AsyncStream
from seedance_sdk.testing import Answer, Cut, ScriptedServer
from tests.sdk.tcp_server import served

HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def connect() -> Iterator[Callable[[ScriptedServer], SeedanceClient]]:
    clients: list[SeedanceClient] = []

    def make(server: ScriptedServer) -> SeedanceClient:
        clients.append(SeedanceClient(connector=server, dice=lambda: 0.0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


Connect = Callable[[ScriptedServer], SeedanceClient]


def eventually(condition: Callable[[], object]) -> None:
    """Waits for what another thread is about to do; ten seconds are for a machine in trouble."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_documented_example_works_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The first program that anybody writes, over a real WebSocket."""
    with served(ScriptedServer(Answer("Hel", "lo", " wörld"))) as url:
        client = SeedanceClient(url)
        stream = client.chat(messages=[{"role": "user", "content": "Hi"}], temperature=0.3, stream=True)
        for chunk in stream:
            print(chunk.delta, end="", flush=True)  # noqa: T201 - as documented
        client.close()
    assert capsys.readouterr().out == "Hello wörld"


def test_client_returns_completions(connect: Connect) -> None:
    """Without ``stream`` the whole answer comes at once."""
    client = connect(ScriptedServer(Answer("a", "b"), Answer("c")))
    assert client.chat(messages=HI).text == "ab"
    assert client.complete(token_ids=[1]).text == "c"


def test_stream_offers_what_the_async_one_does(connect: Connect) -> None:
    """Text, ids, bytes, collect and repr: one implementation, seen from a thread."""
    client = connect(ScriptedServer(Answer("é", "b")))
    with client.chat(messages=HI, stream=True) as stream:
        assert next(stream).delta == "é"
        assert (stream.id, stream.text, stream.last_id, stream.received_bytes) == (1, "é", 1, 2)
        assert stream.collect().text == "éb"
        assert list(stream) == []
        assert repr(stream) == "<Stream 1: 2 characters, stop>"


def test_faces_have_the_same_names() -> None:
    """Whoever knows one client knows the other."""
    faces = ((SeedanceClient, AsyncSeedanceClient), (Stream, AsyncStream), (Events, AsyncEvents))
    for blocking, native in faces:
        names = {name for name in dir(native) if not name.startswith("_")} - {"aclose"}
        assert {name for name in dir(blocking) if not name.startswith("_")} - {"close"} == names


def test_many_threads_share_one_client(connect: Connect) -> None:
    """Streams interleave on one connection; nobody gets another's text."""
    server = ScriptedServer(respond=lambda request: Answer(*(request.prompt or "")))
    client = connect(server)
    texts: dict[str, str] = {}

    def ask(prompt: str) -> None:
        texts[prompt] = "".join(chunk.delta for chunk in client.complete(prompt=prompt, stream=True))

    prompts = [f"prompt {number}" for number in range(12)]
    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == {prompt: prompt for prompt in prompts}
    assert len(server.endpoints) == 1


def test_slow_consumer_holds_the_server_back_and_nobody_else(connect: Connect) -> None:
    """Back-pressure is real: what is not asked for is not sent beyond the window."""
    server = ScriptedServer(Answer(*("x" for _ in range(1000))), Answer(*"other"))
    client = connect(server)
    slow = client.complete(prompt="x", stream=True)
    assert next(slow).id == 1
    assert client.complete(prompt="y").text == "other"
    generation = slow._reading._generation
    assert len(generation._arrivals) <= 128
    assert len(slow.collect().text) == 1000


def test_cut_in_the_middle_is_not_noticed_by_the_loop(connect: Connect) -> None:
    """The iterator goes on by itself, each piece once."""
    server = ScriptedServer(Answer("a", Cut(1012), "b", Cut(), "c"))
    stream = connect(server).chat(messages=HI, stream=True)
    assert [chunk.delta for chunk in stream] == ["a", "b", "c", ""]
    assert (stream.text, stream.reconnects, len(server.requests)) == ("abc", 2, 1)


def test_failure_in_the_middle_keeps_what_was_received(connect: Connect) -> None:
    """The loop ends with a typed error; the stream still knows the text."""
    client = connect(ScriptedServer(Answer("a", "b", close_code=1008), Answer("c")))
    stream = client.chat(messages=HI, stream=True)
    with pytest.raises(PermissionDenied) as caught:
        list(stream)
    assert caught.value.close_code == 1008
    assert (stream.text, stream.last_id) == ("ab", 2)
    assert client.chat(messages=HI).text == "c"


def test_bookmark_lets_another_client_go_on(connect: Connect) -> None:
    """One client leaves the stream, another takes it up behind the last piece taken."""
    server = ScriptedServer(Answer(*"abcd"))
    first = connect(server)
    stream = first.chat(messages=HI, stream=True)
    assert [next(stream).delta for _ in range(2)] == ["a", "b"]
    assert stream.bookmark.last_processed_id == 2
    bookmark = stream.detach().to_str()
    first.close()
    resumed = connect(server).resume(bookmark)
    assert resumed.collect().text == "cd"
    assert server.cancelled == []


def test_hook_hears_of_reconnects(connect: Connect) -> None:
    """Counters and logs need no subclass."""
    heard: list[ReconnectDetails] = []
    server = ScriptedServer(Answer("a", Cut(1012), "b"))
    with SeedanceClient(connector=server, on_reconnect=heard.append, dice=lambda: 0.0) as client:
        assert client.chat(messages=HI).text == "ab"
    assert [(details.attempt, details.wait_for_s, details.streams) for details in heard] == [(1, 0.0, 1)]
    assert heard[0].caused_by.close_code == 1012


@pytest.mark.parametrize("how", ["close", "with", "break and del"])
def test_leaving_a_stream_cancels_it_on_the_server(connect: Connect, how: str) -> None:
    """The model does not go on for nobody."""
    server = ScriptedServer(Answer("a", "b", endless=True), Answer("next"))
    client = connect(server)
    stream = client.chat(messages=HI, stream=True)
    for _ in stream:
        break
    if how == "close":
        stream.close()
        with pytest.raises(StreamClosed):
            next(stream)
    elif how == "with":
        with stream:
            pass
    else:
        del stream
        gc.collect()
    assert client.chat(messages=HI).text == "next"
    eventually(lambda: server.cancelled == [1])


def test_cancel_lets_the_last_chunk_arrive(connect: Connect) -> None:
    """The loop ends by itself, with the reason."""
    client = connect(ScriptedServer(Answer("a", endless=True)))
    reasons = []
    stream = client.chat(messages=HI, stream=True)
    for chunk in stream:
        stream.cancel()
        reasons.append(chunk.finish_reason)
    assert reasons == [None, "cancelled"]


def test_close_in_one_thread_ends_the_stream_of_another(connect: Connect) -> None:
    """A waiting loop is woken with ClientClosed, not left behind."""
    client = connect(ScriptedServer(Answer("a", endless=True)))
    stream = client.chat(messages=HI, stream=True)
    errors: list[Exception] = []

    def read() -> None:
        try:
            list(stream)
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    eventually(lambda: stream.text == "a")
    client.close()
    thread.join(10)
    assert len(errors) == 1
    with pytest.raises(ClientClosed):
        client.chat(messages=HI)
    stream.close()
    stream.cancel()


def test_client_dropped_with_its_streams_leaves_no_thread() -> None:
    """Nothing needs to be closed by hand for a program to be clean."""
    server = ScriptedServer(Answer("a", endless=True))
    client = SeedanceClient(connector=server)
    stream = client.chat(messages=HI, stream=True)
    thread = client._portal._host.thread
    del client
    gc.collect()
    assert next(stream).delta == "a"
    del stream
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    assert server.connections == 0


def test_nobody_listens_is_a_typed_error() -> None:
    """The commonest mistake has the clearest error."""
    with (
        SeedanceClient("ws://127.0.0.1:9/v1/chat") as client,
        pytest.raises(ConnectFailed, match="cannot connect"),
    ):
        client.chat(messages=HI)


PROGRAM = """
import os, signal, sys, threading
from seedance_sdk import SeedanceClient
from seedance_sdk.testing import Answer, ScriptedServer

server = ScriptedServer(Answer("a", endless=True))
client = SeedanceClient(connector=server)

def interrupt():
    while not server.requests: pass
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

threading.Thread(target=interrupt, daemon=True).start()
try:
    {body}
except KeyboardInterrupt:
    {after}
    print("interrupted", flush=True)
    {end}
"""

STREAM = 'for chunk in client.complete(prompt="x", stream=True): print(chunk.delta, flush=True)'
CANCELLED = "while server.cancelled != [1]: pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "after", "end", "status"),
    [
        pytest.param(STREAM, CANCELLED, "", 0, id="streaming"),
        pytest.param(STREAM, CANCELLED, "raise", -2, id="streaming-unhandled"),
        pytest.param('client.complete(prompt="x")', CANCELLED, "", 0, id="collecting"),
        pytest.param('client.complete(prompt="x")', CANCELLED, "client.close()", 0, id="closing"),
    ],
)
def test_ctrl_c_cancels_the_generation_and_the_process_ends(
    body: str, after: str, end: str, status: int
) -> None:
    """Ctrl-C in the consuming thread is a KeyboardInterrupt there at once; nothing hangs at exit."""
    program = PROGRAM.format(body=body, after=after, end=end)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.endswith("interrupted\n"), done.stderr
    assert done.returncode == status, done.stderr
    noise = [line for line in done.stderr.splitlines() if "Warning" in line or "ignored" in line]
    assert noise == []


@pytest.mark.slow
def test_process_ends_by_itself_and_says_goodbye_with_a_client_left_open() -> None:
    """No close, no context manager: the program of the documentation ends cleanly all the same."""
    program = """
import atexit
atexit.register(lambda: print("connections left:", server.connections))  # runs after what is registered later
from seedance_sdk import SeedanceClient
from seedance_sdk.testing import Answer, ScriptedServer
server = ScriptedServer(Answer("a", endless=True))
client = SeedanceClient(connector=server)
stream = client.complete(prompt="x", stream=True)
print(next(stream).delta)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\nconnections left: 0\n", "")

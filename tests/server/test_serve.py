"""Tests of `seedance_server.serve`: real sockets, a real thread, and an engine that is scripted."""

import signal
import socket
import threading
from contextlib import suppress
from unittest.mock import Mock

import pytest
import trio
from trio_websocket import ConnectionClosed

import seedance_server.serve
from seedance_server.config import Config
from seedance_server.engine.errors import ModelNotFound
from seedance_server.errors import EngineStopped, ListenError, StartupError
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine
from seedance_wire.messages import Delta
from tests.server.wire_client import http, wire_client


def factory(engine=None):
    def load(_config, progress):
        progress("loading a script")
        return ServedModel(
            name="scripted",
            context_tokens=4096,
            vocab_size=0x110000,
            engine=engine or ScriptedEngine(),
            encoder=ScriptedEncoder(),
            fingerprint=bytes(32),
        )

    return load


def config(**more) -> Config:
    return Config(**({"model_path": "m", "port": 0, "shutdown_timeout_s": 1} | more))


async def connect(url: str) -> trio.SocketStream:
    host, port = url.removeprefix("ws://").removesuffix("/v1/chat").rsplit(":", 1)
    return await trio.open_tcp_stream(host.strip("[]"), int(port))


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name == "seedance-decode"}


async def run(nursery, *arguments, **more) -> str:
    async def quiet(*, task_status):
        await serve(*arguments, watch_signals=False, task_status=task_status, **more)

    return await nursery.start(quiet)


async def test_serve_answers_over_tcp_and_says_when_it_is_ready(capfd) -> None:
    """Progress on stderr, one ready line with the real port on stdout, then it can answer."""
    async with trio.open_nursery() as nursery:
        url = await run(nursery, config(), factory())
        out, err = capfd.readouterr()
        assert out == f"seedance-server ready on {url}\n"
        assert "seedance-server: loading a script\n" in err
        async with wire_client(await connect(url)) as client:
            await client.submit()
            await client.accepted()
            text, end = await client.until_end()
            assert text == "Hello, world!"
            assert end.final.timing.egress_ms > 0
        answer = await http(
            await connect(url), b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        nursery.cancel_scope.cancel()
    assert not threads()


async def test_serve_survives_resets_in_the_middle_of_everything() -> None:
    """A reset while streaming, in the handshake, before it: nothing is left and the next is served."""
    engine = ScriptedEngine(["x"] * 1000)
    async with trio.open_nursery() as nursery:
        url = await run(nursery, config(), factory(engine))
        for sent in (b"", b"GET /v1/ch", None):
            stream = await connect(url)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if sent is None:
                async with wire_client(stream) as client:
                    await client.submit()
                    await client.accepted()
                    await client.receive()
                    stream.socket.close()
            else:
                await stream.send_all(sent)
                stream.socket.close()
        with trio.fail_after(5):
            while engine.active:  # noqa: ASYNC110 - the engine lives on a thread of its own
                await trio.sleep(0.01)
        async with wire_client(await connect(url)) as client:
            await client.submit(sampling={"max_tokens": 2})
            await client.accepted()
            assert (await client.until_end())[0] == "xx"
        nursery.cancel_scope.cancel()


async def test_serve_with_a_failed_engine_does_not_say_that_it_drains() -> None:
    """No GOAWAY, and 1011 rather than 1001, also for who has nothing running: it isn't an orderly end."""
    heard = []

    async def fail(*, task_status) -> None:
        engine = ScriptedEngine(["x"] * 9, fail_at_step=3)
        with pytest.raises(EngineStopped):
            await serve(config(), factory(engine), watch_signals=False, task_status=task_status)

    async with trio.open_nursery() as nursery:
        url = await nursery.start(fail)
        async with wire_client(await connect(url)) as idle, wire_client(await connect(url)) as working:
            await working.submit()
            await working.accepted()
            for client in (working, idle):
                with suppress(ConnectionClosed):
                    while True:
                        heard.append(type(await client.receive()))
                heard.append(client.websocket.closed.code)
    assert [each for each in heard if each is not Delta] == [1011, 1011]
    assert not threads()


async def test_serve_raises_one_error_when_it_cannot_start() -> None:
    """Never a group, never a thread left behind."""

    def fail(_config, _progress):
        raise ModelNotFound("/nowhere", "there is no such directory")

    with pytest.raises(ModelNotFound):
        await serve(config(), fail, watch_signals=False)
    async with trio.open_nursery() as nursery:
        url = await run(nursery, config(), factory())
        with pytest.raises(ListenError, match="the port is in use"):
            await serve(config(port=int(url.rsplit(":", 1)[1].split("/")[0])), factory(), watch_signals=False)
        nursery.cancel_scope.cancel()
    assert not threads()


async def test_serve_lets_a_bug_in_loading_through() -> None:
    """What isn't a known failure keeps its traceback."""

    def fail(_config, _progress):
        raise ZeroDivisionError

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve(config(), fail, watch_signals=False)
    assert caught.group_contains(ZeroDivisionError)
    assert not threads()


async def test_serve_is_alive_while_it_loads() -> None:
    """The port answers from the first moment: liveness yes, readiness no, and how far it is."""
    began, may_end = threading.Event(), threading.Event()

    def slow(config_, progress):
        progress("packing its weights", 0.4)
        began.set()
        may_end.wait(5)
        return factory()(config_, progress)

    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    free = probe.getsockname()[1]
    probe.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve(config(port=free), slow, watch_signals=False))
        assert await trio.to_thread.run_sync(began.wait, 5)
        for path, status in (("healthz", 200), ("readyz", 503)):
            stream = await trio.open_tcp_stream("127.0.0.1", free)
            answer = await http(
                stream, f"GET /{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
            )
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())
            assert b"loading: loading the model: packing its weights: 40%" in answer
        may_end.set()
        nursery.cancel_scope.cancel()


async def test_serve_listens_on_ipv6_too() -> None:
    """The URL is written as IPv6 addresses are."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with trio.open_nursery() as nursery:
        url = await run(nursery, config(host="::1"), factory())
        assert url.startswith("ws://[::1]:")
        async with wire_client(await connect(url)) as client:
            await client.submit()
            await client.accepted()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("budget", "lobby", "connections"), [(192, 48, 144), (32, 8, 24), (10_000, 256, 2000)]
)
def test_serve_shrinks_both_bounds_to_the_open_files_allowed(monkeypatch, budget, lobby, connections) -> None:
    """`ulimit -n 256` makes a small server, not one for a single client."""
    monkeypatch.setattr(seedance_server.serve, "descriptor_budget", lambda: budget)
    shrunk = seedance_server.serve._within_descriptors(config())
    assert (shrunk.max_unauthenticated, shrunk.max_connections) == (lobby, connections)


async def test_serve_does_not_start_with_next_to_no_files(monkeypatch) -> None:
    """One line that says what to raise."""
    monkeypatch.setattr(seedance_server.serve, "descriptor_budget", lambda: 31)
    with pytest.raises(StartupError, match=r"leaves 31 connections, at least 32 .* ulimit -n"):
        await serve(config(), factory(), watch_signals=False)


async def test_serve_asked_to_end_while_loading_has_nothing_to_warn_of(monkeypatch) -> None:
    """Loading can't be interrupted, so it is left behind: the normal path."""
    may_end, lines = threading.Event(), []
    monkeypatch.setattr(seedance_server.serve, "_log", Mock(warning=lambda *a, **k: lines.append(a)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve(config(), lambda *_: may_end.wait(5)))
        await trio.testing.wait_all_tasks_blocked(0.05)
        signal.raise_signal(signal.SIGTERM)
    may_end.set()
    assert not lines

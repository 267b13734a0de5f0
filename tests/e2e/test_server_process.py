"""The command as an operator meets it: a process with a tiny model, signals, exit statuses, stderr."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from seedance_wire.messages import Delta, Flush, GoAway
from tests.e2e.test_resume import check_whole, digest_of, text_of
from tests.server.wire_client import WireClient, http, wire_client
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

READY = b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("qwen2", tmp_path_factory.mktemp("model") / "tiny-qwen2")


class Server:
    """A running process; its lines are read from files, so that it never waits for us."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "seedance_server", *arguments],
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "XDG_STATE_HOME": str(directory / "state"),
                    **environment,
                },
            )

    def wait_for(self, path: Path, words: str) -> str:
        """Waits, bounded, for a line with `words`."""
        for _ in range(6000):
            line = next((line for line in path.read_text().splitlines() if words in line), None)
            if line is not None:
                return line
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.01)
        raise AssertionError(f"never said {words!r}: {self.err.read_text()}")

    @property
    def port(self) -> int:
        line = self.wait_for(self.out, "ready on ws://127.0.0.1:")
        return int(line.rsplit(":", 1)[1].removesuffix("/v1/chat"))

    def insist(self, number: int) -> None:
        """Signals until the process heeds it: what follows the first at once is taken for an echo of it."""
        for _ in range(600):
            if self.process.poll() is not None:
                return
            self.process.send_signal(number)
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers = []

    def start(*arguments: str, **environment: str) -> Server:
        directory = tmp_path / str(len(servers))
        directory.mkdir()
        servers.append(Server(directory, *arguments, **environment))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


async def connect(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def collect(client: WireClient) -> tuple[str, list[object]]:
    """Reads one stream to its end; returns its text and the other messages."""
    text, others = "", []
    while not (others and isinstance(others[-1], Flush) and others[-1].final):
        event = await client.receive()
        if isinstance(event, Delta):
            text += event.text
        else:
            others.append(event)
    return text, others


async def test_process_serves_drains_and_exits_well(start, model: Path) -> None:
    """Ready line, answers that don't depend on neighbours, and a drain that lets the running stream end."""
    server = start("--model-path", str(model), SEEDANCE_PORT="0", SEEDANCE_KV_MEMORY="16MiB")
    port = server.port
    assert (await http(await connect(port), READY)).startswith(b"HTTP/1.1 200 ")

    texts: dict[str, list[str]] = {"alone": [], "beside": []}

    async def ask(where: str, prompt: str) -> None:
        async with wire_client(await connect(port)) as client:
            await client.submit(prompt=prompt, sampling={**GREEDY, "max_tokens": 30})
            await client.accepted()
            texts[where].append((await client.until_end())[0])

    prompts = [f"The quick brown fox number {number}" for number in range(4)]
    for prompt in prompts:
        await ask("alone", prompt)
    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(ask, "beside", prompt)
    assert sorted(texts["alone"]) == sorted(texts["beside"])
    assert len(set(texts["alone"])) == 4

    async with wire_client(await connect(port)) as running, wire_client(await connect(port)) as idle:
        await running.submit(prompt="A long answer", sampling={**GREEDY, "max_tokens": 150})
        await running.accepted()
        await running.receive()
        server.signal(signal.SIGTERM)
        assert await idle.close_code() == 1001
        answer = await http(await connect(port), READY)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"draining" in answer
        _, others = await collect(running)
        assert any(isinstance(message, GoAway) for message in others)
        assert others[-1].final.usage.completion_tokens == 150
        assert await running.close_code() == 1001
    assert await trio.to_thread.run_sync(server.wait) == 0
    assert server.out.read_text() == f"seedance-server ready on ws://127.0.0.1:{port}/v1/chat\n"
    assert "Traceback" not in server.err.read_text()
    assert "quick brown" not in server.err.read_text()  # prompts are never logged


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_process_killed_or_drained_goes_on_after_a_restart_on_its_journal(
    start, model: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """Whatever the client had, it has the rest from the next process; a drain leaves the stream unended."""
    asked = {"prompt": "A long answer", "sampling": {**GREEDY, "max_tokens": 120}}
    flags = ("--model-path", str(model), "--port", "0", "--shutdown-timeout", "0.1")
    async with wire_client(await connect(start(*flags, "--journal", str(tmp_path / "1.db")).port)) as client:
        await client.submit(**asked)
        await client.accepted()
        expected = text_of(await client.frames())
    journal = ("--journal", str(tmp_path / "2.db"))
    former, taken = None, []
    for _ in range(2):
        server = start(*flags, *journal)
        async with wire_client(await connect(server.port), former=former) as client:
            if former is None:
                await client.submit(**asked)
                await client.accepted()
            else:
                assert client.welcome.session_present
                await client.resume(1, taken, digest=digest_of(taken))
            former = client.welcome
            taken += await client.frames(20)
            client.acks = False  # so that it can't end before it is told to
            server.signal(how)
            if how is signal.SIGTERM:
                assert await client.close_code() == 1001
            code = await trio.to_thread.run_sync(server.wait)
        assert code == (0 if how is signal.SIGTERM else -how)
        assert "Traceback" not in server.err.read_text()
    async with wire_client(await connect(start(*flags, *journal).port), former=former) as client:
        await client.resume(1, taken, digest=digest_of(taken))
        check_whole([*taken, *await client.frames()], expected)


async def test_process_ends_at_once_on_a_second_signal(start, model: Path) -> None:
    """The first asks, the second insists."""
    server = start("--model-path", str(model), "--port", "0", "--kv-memory", "16MiB")
    async with wire_client(await connect(server.port)) as client:
        await client.submit(prompt="x", sampling={**GREEDY, "max_tokens": 100_000})
        await client.accepted()
        client.acks = False
        server.signal(signal.SIGINT)
        server.wait_for(server.err, "shutting down")
        assert server.process.poll() is None
        server.insist(signal.SIGTERM)
        assert await trio.to_thread.run_sync(server.wait) == 128 + signal.SIGTERM


def test_process_stops_while_it_loads(start, model: Path) -> None:
    """Nobody waits for a model that isn't wanted any more."""
    server = start("--model-path", str(model), "--port", "0")
    server.wait_for(server.err, "seedance-server: starting PyTorch")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "Traceback" not in server.err.read_text()


def error_line(server: Server) -> str:
    """The one line that a failed start leaves."""
    assert server.wait() == 2
    assert server.out.read_text() == ""
    lines = server.err.read_text().splitlines()
    assert "Traceback" not in server.err.read_text()
    (line,) = [line for line in lines if line.startswith("seedance-server: error: ")]
    assert lines[-1] == line
    return line


def test_process_says_in_one_line_why_it_cannot_start(start, model: Path, tmp_path: Path) -> None:
    """Bad flag, port or journal in use, no journal there, no model, no room: exit 2, no traceback."""
    owner = start("--model-path", str(model), "--port", "0", "--journal", str(tmp_path / "journal.db"))
    assert owner.port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        empty = tmp_path / "empty"
        empty.mkdir()
        cases = [
            (start("--model-path", str(model), "--bogus"), "unrecognized arguments: --bogus"),
            (start("--model-path", str(model), "--port", port), f"port {port}: the port is in use"),
            (start("--model-path", str(tmp_path / "none"), "--port", "0"), "no model at "),
            (start("--model-path", str(empty), "--port", "0"), "the directory holds no config.json"),
            (start("--model-path", str(model), "--port", "0", "--kv-memory", "1"), "the KV pool needs"),
            (
                start(
                    "--model-path", str(model), "--port", "0", SEEDANCE_JOURNAL=str(tmp_path / "journal.db")
                ),
                f"journal.db can't be used: it is in use by process {owner.process.pid} (see --journal)",
            ),
            (
                start("--model-path", str(model), "--port", "0", "--journal", str(tmp_path / "no" / "j.db")),
                "--journal must lie in a directory that exists",
            ),
        ]
        for server, words in cases:
            assert words in error_line(server)

"""A real `seedance-server` process that is killed and started again on one port and one journal.

It is started from this interpreter with a tiny model, so that what is killed is the product itself: its
process, its threads, its socket and its file. Nothing of it outlives the block that made it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio
from attrs import define, field

__all__ = ["ServerProcess", "free_port", "numbers_server", "numbers_server_here", "server_process"]

_NUMBERS = Path(__file__).parents[2] / "bench" / "scripted_server.py"
_READY = "seedance-server ready on "
_LOOK_S = 0.02
START_TIMEOUT_S = 300.0
"""PyTorch on a machine that is busy with other things takes its time."""
STOP_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@define(eq=False)
class ServerProcess:
    """One server, in any number of lives.

    Attributes:
        arguments: Flags beside the port.
        directory: Where its output goes, a file for each life.
        port: Where it listens in each life.
        kills: How often it was killed.
        starts: Lives so far.
        command: What the interpreter is given before the flags.
    """

    arguments: tuple[str, ...]
    directory: Path
    port: int = field(factory=free_port)
    kills: int = 0
    starts: int = 0
    command: tuple[str, ...] = ("-m", "seedance_server")
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients go without a proxy."""
        return f"ws://127.0.0.1:{self.port}/v1/chat"

    @property
    def log(self) -> str:
        """What the current life, or the last one, wrote to stderr."""
        return (self.directory / f"err-{self.starts}").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The process of the current life."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether this life has said that it is ready."""
        return _READY in (self.directory / f"out-{self.starts}").read_text()

    def start(self) -> None:
        """Begins a life; returns at once."""
        assert not self.is_running
        self.starts += 1
        with (
            (self.directory / f"out-{self.starts}").open("wb") as out,
            (self.directory / f"err-{self.starts}").open("wb") as err,
        ):
            self._process = subprocess.Popen(
                [sys.executable, *self.command, "--port", str(self.port), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )

    async def wait_ready(self) -> None:
        """Returns once this life has said that it is ready.

        Raises:
            AssertionError: It ended, or was not ready in time.
        """
        with trio.move_on_after(START_TIMEOUT_S):
            while not self.is_ready:
                assert self.is_running, f"the server ended:\n{self.log}"
                await trio.sleep(_LOOK_S)
            return
        raise AssertionError(f"not ready after {START_TIMEOUT_S:g} s:\n{self.log}")

    async def kill(self) -> None:
        """Ends this life as a power cut would: SIGKILL, nothing is asked of it."""
        assert self._process is not None
        assert self.is_running, f"it ended by itself:\n{self.log}"
        self._process.send_signal(signal.SIGKILL)
        self.kills += 1
        await self.wait()

    async def stop(self) -> int:
        """Asks it to end with SIGTERM; returns its exit status."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def logged(self, text: str) -> None:
        """Returns once this life has written ``text`` to stderr.

        Raises:
            trio.TooSlowError: It didn't in time.
        """
        with trio.fail_after(STOP_TIMEOUT_S):
            while text not in self.log:  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.01)

    async def wait(self) -> int:
        """Returns its exit status, once it has ended."""
        assert self._process is not None
        process = self._process
        return await trio.to_thread.run_sync(lambda: process.wait(STOP_TIMEOUT_S))

    def destroy(self) -> None:
        """Makes sure that there is no process."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)


@contextmanager
def numbers_server_here(directory: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A server that counts, a step a millisecond, for tests without trio."""
    server = ServerProcess(arguments, directory, command=(str(_NUMBERS), "--step-ms=1"))
    try:
        server.start()
        trio.run(server.wait_ready)
        yield server
    finally:
        server.destroy()


def numbers_process(directory: Path, *arguments: str, step_ms: int = 3) -> ServerProcess:
    """A server without a model: each answer counts, a step a number. Its journal is in ``directory`` as well.

    Clients may acknowledge every frame.
    """
    flags = (f"--step-ms={step_ms}", "--journal", str(directory / "journal.db"), "--ack-rate", "10000")
    return ServerProcess((*flags, *arguments), directory, command=(str(_NUMBERS),))


@asynccontextmanager
async def numbers_server(directory: Path, *arguments: str, step_ms: int = 3) -> AsyncIterator[ServerProcess]:
    """Such a server that is ready; it is gone when the block is left."""
    async with _ready(numbers_process(directory, *arguments, step_ms=step_ms)) as server:
        yield server


@asynccontextmanager
async def server_process(directory: Path, *arguments: str) -> AsyncIterator[ServerProcess]:
    """A server that is ready; it is gone when the block is left, however often it was started."""
    async with _ready(ServerProcess(arguments, directory)) as server:
        yield server


@asynccontextmanager
async def _ready(server: ServerProcess) -> AsyncIterator[ServerProcess]:
    try:
        server.start()
        await server.wait_ready()
        yield server
    finally:
        server.destroy()

"""A server as a process group of its own: started, asked whether it is ready, held still, woken, stopped.

While one engine is measured the others are held by SIGSTOP, so that none spins on the cores of another. A
group never outlives the block that started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio
from attrs import frozen

from engine.peer import Launch, Peer
from engine.sse_client import is_healthy

__all__ = ["EngineProcess", "StartFailed", "attached", "running"]

# vLLM compiles for minutes when it starts for the first time.
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_CHARACTERS = 3000


class StartFailed(Exception):  # noqa: N818 - what happened
    """A server ended or hung before it was ready; the message ends with the tail of its log."""


@frozen
class EngineProcess:
    """A server that is ready.

    Attributes:
        peer: What runs.
        port: Where it listens.
        group: Its process group.
        start_s: Seconds until it was ready; NaN where somebody else started it.
    """

    peer: Peer
    port: int
    group: int
    start_s: float

    def hold(self) -> None:
        """Let none of its threads run until `wake`."""
        os.killpg(self.group, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it run again."""
        os.killpg(self.group, signal.SIGCONT)

    def memory_bytes(self) -> int:
        """Return the resident bytes of all its processes now; pages they share count once for each."""
        pages = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(entry.name)) == self.group:
                    pages += int((entry / "statm").read_text().split()[1])
            except OSError:
                continue  # it ended meanwhile
        return pages * os.sysconf("SC_PAGE_SIZE")


def attached(peer: Peer, port: int, group: int) -> EngineProcess:
    """Return a server that runs already, such as one that another run of this benchmark keeps."""
    return EngineProcess(peer, port, group, float("nan"))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def running(
    peer: Peer, model: Path, cores: Sequence[int], log_path: Path
) -> AsyncIterator[EngineProcess]:
    """Run a server on these cores inside the block.

    Args:
        peer: What to run.
        model: Directory of the model.
        cores: The processors it may use; inherited, so it is set for this process as well.
        log_path: Gets all that it prints.

    Raises:
        StartFailed: It ended, or was not ready in time.
    """
    port = free_port()
    launch = peer.launch(model, port, cores)
    process = _start(launch, log_path)
    started_s = time.monotonic()
    try:
        while not await is_healthy(port, launch.health_path):
            if process.poll() is not None or time.monotonic() - started_s > START_TIMEOUT_S:
                raise StartFailed(_explain(peer.title, process.returncode, log_path))
            await trio.sleep(0.1)
        yield EngineProcess(peer, port, process.pid, time.monotonic() - started_s)
    finally:
        _stop(process)


def _start(launch: Launch, log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        return subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **launch.environment},
            start_new_session=True,
        )


def _explain(title: str, status: int | None, log_path: Path) -> str:
    how = "was not ready in time" if status is None else f"ended with status {status} before it was ready"
    return f"{title} {how}:\n{log_path.read_text(errors='replace')[-LOG_TAIL_CHARACTERS:]}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGCONT):
        if process.poll() is None:
            os.killpg(process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # whatever of the group is left
    process.wait()

"""A real server process that counts, for tests that run no event loop: browsers and terminals are driven so.

All but its engine is the product; each answer is the numbers from 0 on, so that one that is lost or repeated
shows. It goes on with what an earlier life left in the journal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import scripted_server
from tests.faults.server_process import ServerProcess

__all__ = ["numbers_process", "start_again"]

_READY_S = 60.0


@contextmanager
def numbers_process(directory: Path, *flags: str, step_ms: float) -> Iterator[ServerProcess]:
    """A server that is ready; it is gone when the block is left, however often it was started."""
    arguments = (f"--step-ms={step_ms}", "--journal", str(directory / "journal.db"), *flags)
    server = ServerProcess(arguments, directory, command=(scripted_server.__file__,))
    try:
        start_again(server)
        yield server
    finally:
        server.destroy()


def start_again(server: ServerProcess) -> None:
    """Begins a life, and returns once it is ready."""
    server.start()
    deadline = time.monotonic() + _READY_S
    while "ready on" not in (server.directory / f"out-{server.starts}").read_text():
        assert server.is_running, server.log
        assert time.monotonic() < deadline, server.log
        time.sleep(0.02)

"""Start `seedance-server` as a process of its own, wait until it is ready, stop it as an operator would.

Used by the demo and the load generator, so that what they show went through the real command, the real port
and the real shutdown. Every wait is bounded, and the server never outlives the block that started it.
"""

from __future__ import annotations

import collections
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import frozen

__all__ = ["RunningServer", "ServerFailed", "demo_model", "running_server", "stop_like_ctrl_c_on_sigterm"]

READY = re.compile(r"^seedance-server ready on (ws://\S+)$")
# Loading a model of several gigabytes from a cold disk takes minutes; more than this is a server that hangs.
START_TIMEOUT_S = 600.0
# The server's own bound for running streams is 30 s by default.
STOP_TIMEOUT_S = 60.0
KEPT_LOG_LINES = 40


class ServerFailed(Exception):  # noqa: N818 - what happened, in the words of whoever reads it
    """The server did not start or did not stop; the message ends with the last lines of its log."""


@frozen
class RunningServer:
    """A server that has said that it is ready.

    Attributes:
        url: Where it listens.
        process: Its process.
        start_s: Seconds from its start to its ready line.
        log: The newest lines of its log; those of its end too, once the block is left.
    """

    url: str
    process: subprocess.Popen[str]
    start_s: float
    log: Sequence[str] = ()

    def memory_bytes(self) -> int:
        """Return the resident size of the server now, in bytes; 0 where that is unknown."""
        return self._status("VmRSS:")

    def peak_memory_bytes(self) -> int:
        """Return the largest resident size of the server so far, in bytes; 0 where that is unknown."""
        return self._status("VmHWM:")

    def _status(self, name: str) -> int:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        return 1024 * int(status.split(name)[1].split()[0])


@contextmanager
def running_server(
    arguments: Sequence[str],
    report: Callable[[str], None],
    *,
    keep_reporting: bool = False,
    program: Sequence[str] = ("-m", "seedance_server"),
) -> Iterator[RunningServer]:
    """Run `seedance-server` with these arguments inside the block; SIGTERM at its end.

    Args:
        arguments: Flags of the server.
        report: Gets the server's log lines while it starts; later ones are kept for the error message only.
        keep_reporting: Report the later ones as well.
        program: What Python is to run instead of `seedance-server`, which takes the same flags.

    Raises:
        ServerFailed: It ended, was not ready in time, or did not end with status 0 on SIGTERM.
    """
    environment = dict(os.environ)
    if any(Path(argument).exists() for argument in arguments):
        environment["HF_HUB_OFFLINE"] = "1"  # a model on this disk needs no hub, nor the wait for one
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
        process_group=0,  # a Ctrl-C at the terminal is for the caller, who then stops the server
    )
    started_s = time.monotonic()
    log: collections.deque[str] = collections.deque(maxlen=KEPT_LOG_LINES)
    ready: queue.Queue[str | None] = queue.Queue()
    reporting = threading.Event()
    reporting.set()
    assert process.stdout is not None
    assert process.stderr is not None
    readers = (
        threading.Thread(target=_read_output, args=(process.stdout, ready), daemon=True),
        threading.Thread(target=_read_log, args=(process.stderr, log, reporting, report), daemon=True),
    )
    for reader in readers:
        reader.start()
    try:
        url = _wait_until_ready(process, ready, log)
        if not keep_reporting:
            reporting.clear()
        yield RunningServer(url, process, time.monotonic() - started_s, log)
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ServerFailed(
                _with_log(f"the server did not stop within {STOP_TIMEOUT_S:.0f} s", log)
            ) from None
        if status != 0:
            raise ServerFailed(_with_log(f"the server ended with status {status}", log))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for reader in readers:
            reader.join(5)


def _wait_until_ready(
    process: subprocess.Popen[str], ready: queue.Queue[str | None], log: collections.deque[str]
) -> str:
    try:
        url = ready.get(timeout=START_TIMEOUT_S)
    except queue.Empty:
        raise ServerFailed(
            _with_log(f"the server was not ready after {START_TIMEOUT_S:.0f} s", log)
        ) from None
    if url is None:
        status = process.wait(STOP_TIMEOUT_S)
        time.sleep(0.1)  # its last words may still be on their way through the other pipe
        raise ServerFailed(_with_log(f"the server ended with status {status} before it was ready", log))
    return url


def _read_output(output: IO[str], ready: queue.Queue[str | None]) -> None:
    for line in output:
        if match := READY.match(line.strip()):
            ready.put(match[1])
    ready.put(None)


def _read_log(
    output: IO[str], log: collections.deque[str], reporting: threading.Event, report: Callable[[str], None]
) -> None:
    for line in output:
        log.append(line.rstrip())
        if reporting.is_set():
            report(line.rstrip())


def _with_log(message: str, log: collections.deque[str]) -> str:
    return "\n  ".join([message, *log])


def stop_like_ctrl_c_on_sigterm() -> None:
    """Let SIGTERM end this process the way Ctrl-C does, so that the server never outlives it.

    Sent on as SIGINT, which trio turns into a clean KeyboardInterrupt; raised here, it would hit trio itself.
    A shell has what it starts in the background ignore SIGINT, so that is undone first.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


def demo_model() -> str:
    """Return the directory of the demo model, converting it first if need be.

    In a process of its own: converting takes gigabytes, which that process gives back.

    Raises:
        ServerFailed: The model cannot be had; the reason is on stderr already.
    """
    command = [sys.executable, "-m", "seedance_server.demo_model"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed("no demo model; `-- --model-path PATH_OR_HUB_ID_OR_GGUF` uses another one")
    return done.stdout.strip()

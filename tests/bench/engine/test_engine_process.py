"""Servers as process groups, played by a script of a few lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from engine.engine_process import EngineProcess, StartFailed, attached, running
from engine.peer import Launch

pytestmark = pytest.mark.slow  # each starts an interpreter

SERVER = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


@attrs.frozen
class ScriptedPeer:
    script: str
    name: str = "scripted"
    title: str = "Scripted"
    levels: frozenset[int] = frozenset()

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:
        return Launch([sys.executable, "-c", self.script, str(port)], {"A": "1"}, "/ready")


def state(process: EngineProcess) -> str:
    return Path(f"/proc/{process.group}/stat").read_text().rsplit(") ", 1)[1][0]


async def test_process_is_ready_when_the_block_begins_and_gone_after_it(tmp_path: Path) -> None:
    """A server never outlives the block, and its log is kept."""
    async with running(ScriptedPeer(SERVER), tmp_path, [0], tmp_path / "log") as process:
        assert process.start_s > 0
        assert process.memory_bytes() > 1_000_000
        assert os.getpgid(process.group) == process.group
    with pytest.raises(ProcessLookupError):
        os.killpg(process.group, 0)
    assert "listening" in (tmp_path / "log").read_text()


async def test_process_is_held_and_woken_and_ends_even_while_held(tmp_path: Path) -> None:
    """An engine that waits its turn takes no time from the one that is measured."""
    async with running(ScriptedPeer(SERVER), tmp_path, [0], tmp_path / "log") as process:
        other = attached(process.peer, process.port, process.group)
        other.hold()
        while state(process) != "T":
            pass
        process.wake()
        while state(process) == "T":
            pass
        process.hold()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.group, 0)


async def test_start_that_fails_says_why(tmp_path: Path) -> None:
    """The reason is in the log, and the log's end in the message."""
    with pytest.raises(
        StartFailed, match=r"Scripted ended with status 3 before it was ready(?s:.*)no memory"
    ):
        async with running(
            ScriptedPeer("print('no memory'); raise SystemExit(3)"), tmp_path, [0], tmp_path / "log"
        ):
            pass

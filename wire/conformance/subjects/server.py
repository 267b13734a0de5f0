"""seedance-server as an implementation under test, with an engine that answers a prompt with its own pieces.

The server is a process of its own, so that `restart` can kill it; its journal and its sinks are files in a
directory that goes when this process does. `--fault NAME` breaks it on purpose, see `server_faults.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.subjects.server_faults import SERVER_FAULTS

__all__ = ["main"]

_PROCESS = Path(__file__).with_name("server_process.py")
_READY = re.compile(r"^seedance-server ready on (ws://\S+)$")


class _Commands:
    """The server's process."""

    def __init__(self, faults: Sequence[str]) -> None:
        self._faults = faults
        self._home = tempfile.TemporaryDirectory(prefix="seedance-conformance-")
        self._server: subprocess.Popen[str] | None = None

    def start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": "seedance-server",
            "roles": ["server"],
            "subprotocols": ["seedance.v1", "seedance.v1.json", "seedance.v1.raw"],
            "features": ["events", "pieces", "restart", "zstd"],
        }

    def serve(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self.stop({})
        home = Path(self._home.name)
        flags = ["--port", "0", "--journal", str(home / "journal.db"), "--events", str(home / "events.jsonl")]
        flags += (f"--fault={fault}" for fault in self._faults)
        self._server = subprocess.Popen(
            [sys.executable, str(_PROCESS), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        for line in self._server.stdout:
            if match := _READY.match(line.strip()):
                return {"url": match[1]}
        raise SystemExit("seedance-server ended before it was ready")

    def restart(self, given: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server is not None, "serve comes first"
        self._server.kill()
        return self.serve(given)

    def stop(self, _: Mapping[str, Any]) -> dict[str, Any]:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            assert self._server.stdout is not None
            self._server.stdout.close()
            self._server = None
        return {}

    def end(self) -> None:
        self.stop({})
        self._home.cleanup()


def _obey(faults: Sequence[str]) -> None:
    commands = _Commands(faults)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for line in sys.stdin:
            given = json.loads(line)
            answer = {"id": given["id"], "ok": getattr(commands, given["do"])(given)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        commands.end()


def main() -> None:
    """Serves commands until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=sorted(SERVER_FAULTS), action="append", default=[])
    _obey(parser.parse_args().fault)


if __name__ == "__main__":
    main()

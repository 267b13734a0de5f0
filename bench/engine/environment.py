"""An environment of Python packages for one peer: its requirements stay away from ours and the others'."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import frozen

__all__ = ["Environment"]


@frozen
class Environment:
    """A virtual environment.

    Attributes:
        path: Where it lies; need not exist yet.
    """

    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its ``site-packages``."""
        return next(self.path.glob("lib/python3*/site-packages"))

    def program(self, name: str) -> Path:
        """Return where a command of one of its packages lies."""
        return self.path / "bin" / name

    def make(self, run: Callable[[Sequence[str]], None]) -> None:
        """Create it anew, empty, with the interpreter that runs this."""
        run([sys.executable, "-m", "venv", "--clear", str(self.path)])

    def install(self, run: Callable[[Sequence[str]], None], *arguments: str) -> None:
        """Install packages; the arguments are pip's."""
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run([*pip, "install", *arguments])

    def versions(self, *names: str) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        script = (
            "import json, sys, importlib.metadata as m;"
            "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in sys.argv[1:]}))"
        )
        done = subprocess.run(
            [self.python, "-c", script, *names], capture_output=True, text=True, check=True, timeout=60
        )
        found: dict[str, str] = json.loads(done.stdout)
        return {name: found[name] for name in names if name in found}

"""Environments of peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from engine.environment import Environment


def test_environment_runs_its_own_pip() -> None:
    """Nothing of a peer is installed into the environment that runs the benchmark."""
    commands: list[Sequence[str]] = []
    environment = Environment(Path("/e"))
    environment.make(commands.append)
    environment.install(commands.append, "torch==1", "--no-deps")
    assert commands[0] == [sys.executable, "-m", "venv", "--clear", "/e"]
    assert commands[1][:4] == ["/e/bin/python", "-m", "pip", "--disable-pip-version-check"]
    assert commands[1][-3:] == ["install", "torch==1", "--no-deps"]


def test_environment_knows_its_programs() -> None:
    """Commands of a peer's packages are those of its environment."""
    assert Environment(Path("/e")).program("vllm") == Path("/e/bin/vllm")

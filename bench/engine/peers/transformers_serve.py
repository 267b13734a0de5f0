"""Transformers' own server with continuous batching: `transformers serve --continuous-batching`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import field, frozen

from engine.environment import Environment
from engine.http_peer import http_connect
from engine.peer import Connect, Launch, peers_home

__all__ = ["TransformersServe"]

PACKAGES = ("torch==2.13.0", "transformers[serving]==5.24.0", "accelerate", "psutil")


@frozen
class TransformersServe:
    """The library that our engine takes its models from, serving by itself."""

    name: str = "transformers"
    title: str = "Transformers CB"
    levels: frozenset[int] = frozenset({32})
    environment: Environment = field(factory=lambda: Environment(peers_home() / "transformers"))

    def absent(self) -> str | None:
        """Say what is missing."""
        return None if self.environment.program("transformers").exists() else "not installed"

    def prepare(self, run: Callable[[Sequence[str]], None]) -> None:
        """Install it with its serving extra."""
        self.environment.make(run)
        self.environment.install(run, *PACKAGES)

    def version(self) -> str:
        """Name the versions that matter."""
        found = self.environment.versions("transformers", "torch")
        return ", ".join(f"{name} {version}" for name, version in found.items())

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:
        """Serve in bf16; the size of the KV pool is given, as its default asks for a GPU's memory."""
        command = [
            *(str(self.environment.program("transformers")), "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"),
            *("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "1024"),
        ]
        return Launch(command, {"OMP_NUM_THREADS": str(len(cores)), "HF_HUB_OFFLINE": "1"})

    def connect(self, port: int) -> Connect:
        """Ask its completions endpoint; it has no field for going on after an end, so there is no end."""
        settings = {"do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
        return http_connect(port, {"generation_config": json.dumps(settings)})

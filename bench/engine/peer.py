"""What a server must offer to be compared: how to install it, how to start it, how to ask it.

A peer knows nothing of levels, rounds or figures; the measuring side knows nothing of a peer's flags.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from attrs import field, frozen

from engine.workload import Request
from figures import Answer

__all__ = ["Ask", "Connect", "Launch", "Peer", "peers_home"]

Ask: TypeAlias = Callable[[Request], Awaitable[Answer]]
"""Sends one request and reads its answer to the end; a failure is the answer's ``error``."""
Connect: TypeAlias = Callable[[int], AbstractAsyncContextManager[Sequence[Ask]]]
"""Opens what is needed for so many streams at once; one `Ask` for each of them."""


@frozen
class Launch:
    """How to start a server.

    Attributes:
        command: The program and its arguments.
        environment: Variables beside those of this process.
        health_path: Answered with 200 once the server can generate.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(factory=dict)
    health_path: str = "/health"


class Peer(Protocol):
    """One engine."""

    @property
    def name(self) -> str:
        """How the command line calls it."""

    @property
    def title(self) -> str:
        """How tables call it."""

    @property
    def levels(self) -> frozenset[int]:
        """Numbers of streams at which it is compared; empty for all."""

    def absent(self) -> str | None:
        """Say why it can't be measured here; None if it can."""

    def prepare(self, run: Callable[[Sequence[str]], None]) -> None:
        """Install it into an environment of its own.

        Args:
            run: Runs a command and raises if it fails.
        """

    def version(self) -> str:
        """Say what is installed, versions and what they were built with."""

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:
        """Return how to serve this model on this port, tuned as its documentation says, on these cores."""

    def connect(self, port: int) -> Connect:
        """Return how to reach it once it runs."""


def peers_home() -> Path:
    """Return where peers are installed: outside the repository, kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "seedance" / "peers"

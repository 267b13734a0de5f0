"""Our own server as an operator starts it, journal and all, asked through the SDK."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import frozen

from engine.peer import Ask, Connect, Launch
from engine.workload import Request
from figures import Answer, ask
from seedance_sdk import AsyncSeedanceClient, SeedanceError

__all__ = ["Ours"]

# As an application does: many streams over one connection, of which the server allows 64.
STREAMS_PER_CONNECTION = 32


@frozen
class Ours:
    """The engine that is measured against the others.

    Attributes:
        flags: Flags of `seedance-server` beside the model and the port.
        journal: Where its journal lies, anew for each run: on a disk, as an operator's would.
    """

    flags: Sequence[str] = ()
    journal: Path | None = None
    name: str = "ours"
    title: str = "seedance"
    levels: frozenset[int] = frozenset()

    def absent(self) -> str | None:
        """It is always here."""
        return None

    def prepare(self, run: Callable[[Sequence[str]], None]) -> None:
        """It is installed where this runs."""

    def version(self) -> str:
        """Name the versions that matter."""
        return ", ".join(f"{name} {version(name)}" for name in ("seedance-server", "torch", "transformers"))

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:  # noqa: ARG002 - it sees them by itself
        """Serve with the defaults."""
        command = [
            *(sys.executable, "-m", "seedance_server", "--model-path", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
            *(("--journal", str(self.journal)) if self.journal else ()),
            *self.flags,
        ]
        return Launch(command, {"HF_HUB_OFFLINE": "1"}, health_path="/readyz")

    def connect(self, port: int) -> Connect:
        """Ask through the SDK, on connections that are open already: an application keeps them."""
        url = f"ws://127.0.0.1:{port}/v1/chat"

        @asynccontextmanager
        async def opened(streams: int) -> AsyncIterator[Sequence[Ask]]:
            async with AsyncExitStack() as stack:
                asks: list[Ask] = []
                for first in range(0, streams, STREAMS_PER_CONNECTION):
                    client = await stack.enter_async_context(AsyncSeedanceClient(url))
                    await client.complete(prompt="water", max_tokens=1)
                    asks += [_asker(client)] * min(STREAMS_PER_CONNECTION, streams - first)
                yield asks

        def connect(streams: int) -> AbstractAsyncContextManager[Sequence[Ask]]:
            return opened(streams)

        return connect


def _asker(client: AsyncSeedanceClient) -> Ask:
    async def ask_client(request: Request) -> Answer:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": request.max_tokens}
        started_s = time.monotonic()
        try:
            return await ask(client, {"prompt": request.prompt, **options})
        except SeedanceError as error:
            return Answer(started_s, time.monotonic(), error=f"{type(error).__name__}: {error}")

    return ask_client

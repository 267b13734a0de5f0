"""What all peers with an OpenAI-compatible server have in common: how they are asked."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import h11

from engine.peer import Ask, Connect
from engine.sse_client import PeerError, stream_completion
from engine.workload import Request
from figures import Answer

__all__ = ["http_connect"]


def http_connect(port: int, body: Mapping[str, Any]) -> Connect:
    """Return a way to ask ``/v1/completions`` on this port, a connection for each request.

    Args:
        port: Where the server listens.
        body: What it wants beside prompt, length and streaming.
    """

    async def ask(request: Request) -> Answer:
        started_s = time.monotonic()
        try:
            return await stream_completion(port, body, request)
        except (PeerError, OSError, h11.RemoteProtocolError) as error:
            return Answer(started_s, time.monotonic(), error=f"{type(error).__name__}: {error}")

    @asynccontextmanager
    async def opened(streams: int) -> AsyncIterator[Sequence[Ask]]:
        yield [ask] * streams

    def connect(streams: int) -> AbstractAsyncContextManager[Sequence[Ask]]:
        return opened(streams)

    return connect

"""Several endpoints in memory, behind which there are servers with one journal, or each with its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from seedance_sdk.causes import error_of_status
from seedance_sdk.edges import Affinity, Edges
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.endpoints import Endpoints
from seedance_sdk.errors import ConnectFailed
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.limits import Limits
from seedance_sdk.testing import ScriptedServer
from seedance_sdk.transport import Transport

A, B, C = (f"ws://{name}.example/v1/chat" for name in "abc")


class Fleet:
    """A connector that leads each URL to its server.

    Args:
        servers: Which server each URL has; the same one for several stands for a shared journal.

    Attributes:
        dials: The URLs that were tried, in order.
        down: URLs that refuse connections.
        statuses: URLs that refuse the upgrade with this HTTP status.
        handshake_s: How long a connection takes to open.
    """

    def __init__(self, servers: dict[str, ScriptedServer]) -> None:
        self.dials: list[str] = []
        self.down: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.handshake_s: dict[str, float] = {}
        self._servers = servers

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        self.dials.append(endpoint.url)
        await trio.sleep(self.handshake_s.get(endpoint.url, 0))
        if endpoint.url in self.statuses:
            raise error_of_status(self.statuses[endpoint.url], "refused by the fleet", 60_000)
        if endpoint.url in self.down or endpoint.url not in self._servers:
            raise ConnectFailed(f"cannot connect to {endpoint.url}: it is down")
        async with self._servers[endpoint.url](endpoint, limits) as transport:
            yield transport

    def kill(self, url: str) -> None:
        """Takes one endpoint away, and cuts its connections."""
        self.down.add(url)
        self._servers[url].cut()


def endpoints_of(fleet: Fleet, edges: Edges, limits: Limits | None = None) -> Endpoints:
    """A client's endpoints over it."""
    template = Endpoint.of(A, subprotocol="seedance.v1", api_key=None, user_agent="test")
    return Endpoints(edges, template, fleet, limits or Limits(), LatencyObservatory())


def edges_with(first: str, *others: str, shared_sessions: bool = True) -> Edges:
    """Edges such that a client goes to ``first`` of itself."""
    for number in range(1000):
        affinity = Affinity(key=str(number))
        edges = Edges([first, *others], affinity=affinity, shared_sessions=shared_sessions)
        if endpoints_of(Fleet({}), edges).choose().url == first:
            return edges
    raise AssertionError("no affinity goes there")

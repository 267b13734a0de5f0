"""One endpoint as connections meet it: how to open one, whether it may be, and what it was like.

Must not know why this endpoint and no other, nor what a connection carries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from seedance_sdk.circuit import Circuit
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.latency import EndpointLatency
from seedance_sdk.latency_series import LatencySeries
from seedance_sdk.limits import Limits
from seedance_sdk.transport import Connector, Transport

__all__ = ["Place"]


class Place:
    """One endpoint of one client.

    Args:
        endpoint: Where to connect and as whom.
        connector: Makes transports.
        limits: For the connector.
        circuit: Shared by all its connections.
        latency: Hears of handshakes and heartbeats.
        series: Counts answers that come from here.
        on_handshake: Called with the seconds that one took, and whether TLS agreed on our protocol; see
            `Transport.alpn_matched`.

    Attributes:
        circuit: As given.
        latency: As given.
        series: As given.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connector: Connector,
        limits: Limits,
        circuit: Circuit,
        latency: EndpointLatency,
        series: LatencySeries,
        on_handshake: Callable[[float, bool | None], object],
    ) -> None:
        self.circuit = circuit
        self.latency = latency
        self.series = series
        self._endpoint = endpoint
        self._connector = connector
        self._limits = limits
        self._on_handshake = on_handshake

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Its address."""
        return self._endpoint.url

    @asynccontextmanager
    async def connect(self, session_id: str | None = None) -> AsyncIterator[Transport]:
        """Opens a connection, for a session that is known there; see `seedance_sdk.transport.Connector`."""
        began = trio.current_time()
        async with self._connector(self._endpoint.in_session(session_id), self._limits) as transport:
            seconds = trio.current_time() - began
            self.latency.connected(seconds)
            self._on_handshake(seconds, transport.alpn_matched)
            yield transport

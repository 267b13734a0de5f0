"""What the faces of a client have in common: how one is made, and what can be seen of it without waiting.

The faces differ only in how a call crosses to trio: `client` awaits, `blocking` blocks.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from seedance_sdk.circuit_breaker import CircuitChange, CircuitState
from seedance_sdk.edges import Affinity, Edges
from seedance_sdk.endpoint import make_endpoint
from seedance_sdk.endpoints import Endpoints, EndpointStatistics
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.limits import Limits
from seedance_sdk.pool import PoolStatistics
from seedance_sdk.portal import Portal
from seedance_sdk.reading import Reading
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.sessions import Sessions
from seedance_sdk.transport import Connector, WebSocketConnector
from seedance_wire.bookmark import Bookmark

__all__ = ["ClientFace", "Reader", "StreamFace"]

T = TypeVar("T")


class Reader(Protocol):
    """What a stream's face needs of the way to trio; `Passage` and `Portal` have it."""

    def read(self, function: Callable[[], T]) -> T:
        """Returns ``function()``, called where nothing else happens to the stream meanwhile."""


class ClientFace:
    """A client, whatever its calls look like.

    Args:
        url: ``ws://host:port/v1/chat`` or ``wss://…``; by default ``SEEDANCE_URL``, else localhost. Or
            several endpoints of one service: `Edges`.
        api_key: By default ``SEEDANCE_API_KEY``. Sent with the upgrade, never in the URL.
        limits: Every bound of the client.
        ssl_context: For ``wss``; by default Python's, which checks certificate and host name.
        subprotocol: ``seedance.v1``, or ``seedance.v1.json`` to read along.
        on_reconnect: Called before each attempt to connect again, for logs and counters; must return soon.
            Except on trio it is called in the client's background thread.
        on_circuit_change: Called when the endpoint's circuit breaker opens, half opens or closes; the same.
        latency: What it observes goes there; by default into an observatory of its own.
        report_latency_s: Report that to the server too, as events named ``seedance.latency``: at such
            intervals in seconds where there is news, and at the end. By default it stays here.
        canary: Whether its requests try something out: connections say ``X-Canary: true``, for proxies to
            route and servers to trace by, and its latency figures are kept apart.
        connector: Makes transports; for tests, see `seedance_sdk.testing`.
        clock: Stamps `Chunk.received_at`, in seconds.
        dice: Uniform in [0, 1): the jitter of the waits.
        wall_clock: Stamps reports, in seconds since 1970.

    Raises:
        ValueError: The URL or the key is malformed, there is no such subprotocol, or an interval is none.
    """

    def __init__(
        self,
        url: str | Edges | None = None,
        *,
        api_key: str | None = None,
        limits: Limits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        subprotocol: str = "seedance.v1",
        on_reconnect: Callable[[ReconnectDetails], object] | None = None,
        on_circuit_change: Callable[[CircuitChange], object] | None = None,
        latency: LatencyObservatory | None = None,
        report_latency_s: float | None = None,
        canary: bool = False,
        connector: Connector | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if report_latency_s is not None and not report_latency_s > 0:
            raise ValueError(f"report_latency_s must be more than 0, not {report_latency_s}")
        first = url.edges[0].url if isinstance(url, Edges) else url
        self._endpoint = make_endpoint(first, api_key, subprotocol, canary=canary)
        self._edges = url if isinstance(url, Edges) else Edges([self._endpoint.url])
        self._limits = limits or Limits()
        self._latency = latency or LatencyObservatory(clock=clock)
        self._endpoints = Endpoints(
            self._edges,
            self._endpoint,
            connector or WebSocketConnector(ssl_context),
            self._limits,
            self._latency,
            affinity=Affinity(key=str(dice())) if len(self._edges.edges) > 1 else None,
            canary=canary,
            on_circuit_change=on_circuit_change,
        )
        self._sessions = Sessions(
            self._endpoints,
            self._limits,
            clock=clock,
            wall_clock=wall_clock,
            dice=dice,
            on_reconnect=on_reconnect,
            latency=self._latency,
            report_latency_s=report_latency_s,
        )
        # Reports, the goodbye, the socket: each has its own bound, and the thread needs a moment around them.
        # Until its first call there is no thread; on trio there never is.
        self._portal = Portal(self._sessions, close_timeout_s=3 * self._limits.close_timeout_s + 1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(edge.url for edge in self._edges.edges)}>"

    @property
    def latency(self) -> LatencyObservatory:
        """What was observed: ``print(client.latency.report())``. Any thread may ask."""
        return self._latency

    @property
    def circuit(self) -> CircuitState:
        """What the first endpoint is trusted with; see `CircuitState`, and `endpoints` for several."""
        return self.endpoints[0].circuit

    def statistics(self) -> PoolStatistics:
        """The client's connections, in numbers. Any thread may ask."""
        return self._sessions.statistics()

    @property
    def endpoints(self) -> tuple[EndpointStatistics, ...]:
        """Every endpoint as the client sees it, in the order given."""
        return self._endpoints.statistics()


class StreamFace:
    """An answer on its way, whatever reading it looks like."""

    def __init__(self, way: Reader, reading: Reading) -> None:
        self._way = way
        self._reading = reading

    def __repr__(self) -> str:
        last = self._reading.received.last
        end = (last.finish_reason if last else None) or "open"
        return f"<{type(self).__name__} {self.id}: {len(self.text)} characters, {end}>"

    @property
    def id(self) -> int:
        """The server's number for this stream in its session."""
        return self._reading.id

    @property
    def session_id(self) -> str:
        """The session that the stream belongs to."""
        return self._reading.session_id

    @property
    def bookmark(self) -> Bookmark:
        """Where the reader is: after the last chunk taken. Another client can go on from there.

        Store it together with the effect of that chunk, and a program that dies goes on where it was, with no
        piece lost and none used twice. It holds a secret: whoever has it can read the session's streams.

        Raises:
            Unsupported: The server does not keep this stream.
        """
        return self._way.read(lambda: self._reading.bookmark)

    @property
    def reconnects(self) -> int:
        """How many times the connection was lost and restored under this stream."""
        return self._reading.reconnects

    @property
    def text(self) -> str:
        """Everything received so far, of a resumed stream what came after its bookmark."""
        return self._reading.received.text

    @property
    def last_id(self) -> int:
        """Id of the last chunk received; before the first 0, or what the bookmark says."""
        return self._reading.received.last_id

    @property
    def received_bytes(self) -> int:
        """The offset of the chunk that comes next: UTF-8 bytes of the answer before it."""
        return self._reading.received.bytes

    @property
    def extra(self) -> Mapping[str, object]:
        """The request's labels, as given."""
        return self._reading.extra

    def cancel(self) -> None:
        """Asks the server to end the answer, and waits for nothing.

        Iteration goes on: through what was sent before the server heard of it, to a last chunk with
        ``finish_reason`` "cancelled". To hear no more of the answer close the stream. Repeating it changes
        nothing.
        """
        self._way.read(self._reading.cancel)

    def detach(self) -> Bookmark:
        """Leaves the stream to another reader: cancels nothing, and returns where that one goes on.

        What was not taken is dropped here, and sent again to whoever resumes. Closing the client cancels
        nothing of it either.

        Raises:
            Unsupported: The server does not keep this stream.
        """
        return self._way.read(self._reading.detach)

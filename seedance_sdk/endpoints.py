"""All endpoints of one client: which of them a connection should go to, and what each is worth.

Wraps the pure `EdgeRouter` with trio's clock and the circuits, so that an endpoint which is left alone for a
while is none to choose. A server that leaves may name another address; that one is a place like the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection

import trio
from attrs import evolve, frozen

from seedance_sdk.circuit import Circuit
from seedance_sdk.circuit_breaker import CircuitChange, CircuitState
from seedance_sdk.edges import Affinity, EdgeRouter, Edges, EdgeStatistics
from seedance_sdk.endpoint import Endpoint, complete_url
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.limits import Limits
from seedance_sdk.place import Place
from seedance_sdk.transport import Connector

__all__ = ["EndpointStatistics", "Endpoints"]

LEAVING_S = 30.0
"""How long an endpoint that said it leaves comes last; picked: a restart, or its circuit, takes less."""
MAX_NAMED = 8
"""Addresses that servers named when they left, which are remembered with their circuit; the newest."""

_log = logging.getLogger("seedance_sdk")


@frozen(kw_only=True)
class EndpointStatistics:
    """One endpoint of a client.

    Attributes:
        url: Which.
        circuit: What it is trusted with.
        routing: What affinities make of it.
    """

    url: str
    circuit: CircuitState
    routing: EdgeStatistics


class Endpoints:
    """The endpoints of one client.

    Args:
        edges: All there are.
        template: As whom to connect; its URL does not count.
        connector: Makes transports.
        limits: For the connector and the circuits.
        latency: Hears of handshakes and heartbeats.
        affinity: Decides where this client goes, where the edges don't say.
        canary: Whether its requests are canaries, which are counted apart.
        on_circuit_change: Called at each change of any circuit.

    Attributes:
        shared: Whether all of them know the same sessions.
        subprotocol: The encoding that all connections agree on.
    """

    def __init__(
        self,
        edges: Edges,
        template: Endpoint,
        connector: Connector,
        limits: Limits,
        latency: LatencyObservatory,
        *,
        affinity: Affinity | None = None,
        canary: bool = False,
        on_circuit_change: Callable[[CircuitChange], object] | None = None,
    ) -> None:
        self.shared = edges.shared_sessions
        self.subprotocol = template.subprotocol
        self._router = EdgeRouter(edges)
        self._template = template
        self._connector = connector
        self._limits = limits
        self._latency = latency
        self._canary = canary
        self._affinity = edges.affinity or affinity or Affinity()
        self._on_circuit_change = on_circuit_change
        self._places = {edge.url: self._make(edge.url) for edge in edges.edges}
        self._named: dict[str, Place] = {}
        self._leaving: dict[str, float] = {}  # until when it comes last

    def choose(self, failed: Collection[str] = ()) -> Place:
        """Returns where the next connection should go.

        Args:
            failed: Where it should not, as long as there is another; that is not remembered.
        """
        url = self._router.choose(
            self._affinity, trio.current_time(), lambda url: math.inf if url in failed else self._wait_s(url)
        )
        return self._places[url]

    def has_other(self, failed: Collection[str]) -> bool:
        """Whether a connection may be tried now at an endpoint that is not one of these."""
        return any(url not in failed and self._wait_s(url) <= 0 for url in self._places)

    def leaves(self, url: str) -> None:
        """The server there said that it leaves: for a while others come first."""
        if url in self._places:
            self._leaving[url] = trio.current_time() + LEAVING_S

    def _wait_s(self, url: str) -> float:
        leaving_s = self._leaving.get(url, 0.0) - trio.current_time()
        return max(0.0, leaving_s, self._places[url].circuit.wait_s)

    def named(self, url: str) -> Place | None:
        """The place that a server which leaves has named, or None where it can't be used.

        The API key goes there since the server is trusted, but never over a weaker connection.
        """
        try:
            url = complete_url(url)
        except ValueError as error:
            _log.warning("the server leaves, and its other address can't be used: %s", error)
            return None
        if url in self._places:
            return self._places[url]
        if not evolve(self._template, url=url).secure and any(
            evolve(self._template, url=known).secure for known in self._places
        ):
            _log.warning("the server leaves, and its other address is passed over: it is not encrypted")
            return None
        place = self._named.pop(url, None) or self._make(url)
        self._named[url] = place
        if len(self._named) > MAX_NAMED:
            del self._named[next(iter(self._named))]
        return place

    def statistics(self) -> tuple[EndpointStatistics, ...]:
        """Every endpoint, in the order given."""
        return tuple(
            EndpointStatistics(
                url=routing.url, circuit=self._places[routing.url].circuit.state, routing=routing
            )
            for routing in self._router.statistics()
        )

    def _make(self, url: str) -> Place:
        latency = self._latency.endpoint(url)
        return Place(
            evolve(self._template, url=url),
            self._connector,
            self._limits,
            Circuit(url, self._on_circuit_change, open_max_s=self._limits.circuit_open_max_s),
            latency,
            latency.series(canary=self._canary),
            lambda seconds, matched: self._router.note_handshake(url, seconds, alpn_matched=matched),
        )

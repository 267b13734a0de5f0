"""Which of several endpoints a session goes to: affinity, weights and stickiness (S27), pure.

An endpoint is chosen by rendezvous hashing of the affinity among those of its protocol and region, as far as
any of them can be used, and is kept for a time that depends on the protocol; one whose handshakes end with
the protocol that was asked for, in more than 98 of 100, for as long as it can be used. Handshakes under 35 ms
make an endpoint weigh more, slower ones less. Must not know of connections: time and handshakes are told.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from attrs import Attribute, define, field, frozen

from seedance_sdk.endpoint import complete_url
from seedance_sdk.rendezvous import ranking

__all__ = ["STICKY_S", "Affinity", "Edge", "EdgeRouter", "EdgeStatistics", "Edges"]

STICKY_S: Mapping[str, float] = MappingProxyType({"h2": 300.0, "http/1.1": 120.0})
"""How long an affinity keeps its endpoint, by protocol."""
OTHER_STICKY_S = 120.0
GOOD_HANDSHAKE_S = 0.035
LOCK_ABOVE = 0.98
WINDOW = 100
"""Handshakes that count, the newest: one miss is one percent."""
LEAST_TO_LOCK = 20
"""Handshakes before an endpoint can be locked on to; picked, not measured."""
RISE, MOST, LEAST = 1.1, 4.0, 0.25
"""A good P95 multiplies the weight by the first at each handshake, another one divides it; never over or
under so many times what was configured. Picked, not measured."""
MAX_KEPT = 1024
"""Affinities whose endpoint is remembered, the ones used last. A forgotten one is hashed again."""


def _above_zero(_: object, attribute: Attribute[float], value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{attribute.name} must be a finite number above 0, not {value}")


@frozen(kw_only=True)
class Edge:
    """One of several endpoints of one service.

    Attributes:
        url: ``ws://`` or ``wss://``; what may be left out is completed.
        region: Where it is, in words of your own; clients that name the same region prefer it. Optional.
        protocols: Whose traffic it takes, as ALPN names them: ``("h2",)`` for a cluster that serves what came
            to its gateway over HTTP/2. By default any.
        weight: Its share of all keys, against the others.
    """

    url: str = field(converter=complete_url)
    region: str | None = None
    protocols: tuple[str, ...] = ()
    weight: float = field(default=1.0, validator=_above_zero)


@frozen(kw_only=True)
class Affinity:
    """What decides where a client goes: all who say the same go to the same endpoint.

    Attributes:
        key: Whatever should stay together, such as a user or a tenant; by default each client by itself.
        region: Where the client is, in the words of `Edge.region`.
        protocol: What the client speaks, as ALPN names it; a gateway may say what its own client spoke.
    """

    key: str = ""
    region: str | None = None
    protocol: str = "http/1.1"

    @property
    def text(self) -> str:
        """All three as one key."""
        return "\n".join((self.protocol, self.region or "", self.key))


def _as_edges(edges: Iterable[str | Edge]) -> tuple[Edge, ...]:
    return tuple(Edge(url=edge) if isinstance(edge, str) else edge for edge in edges)


@frozen
class Edges:
    """Several endpoints of one service, in place of a client's URL.

        SeedanceClient(Edges(["wss://a.example", "wss://b.example"]))

    Attributes:
        edges: URLs, or `Edge` where there is more to say.
        affinity: What decides which of them; by default each client goes its own way.
        shared_sessions: Whether they have one journal, so that a session which loses one of them goes on at
            another. Where each has its own, sessions stay where they began, and only new ones go elsewhere.
        sticky_s: How long an affinity keeps its endpoint, by protocol; others 120 s.
    """

    edges: tuple[Edge, ...] = field(converter=_as_edges)
    affinity: Affinity | None = field(default=None, kw_only=True)
    shared_sessions: bool = field(default=True, kw_only=True)
    sticky_s: Mapping[str, float] = field(default=STICKY_S, kw_only=True)

    def __attrs_post_init__(self) -> None:
        urls = [edge.url for edge in self.edges]
        if not urls:
            raise ValueError("at least one endpoint is needed")
        if len(set(urls)) < len(urls):
            raise ValueError("an endpoint is given twice")


@frozen(kw_only=True)
class EdgeStatistics:
    """One endpoint, as the router sees it.

    Attributes:
        url: Which.
        weight: Configured, times what its handshakes made of it.
        handshakes: How many were told of, of the newest 100.
        handshake_p95_s: Of those; None before the first.
        alpn_match: Which share of them ended with the protocol that was asked for; None where none could.
        locked: Whether affinities stay with it beyond their time.
        kept: Affinities that stay with it now.
    """

    url: str
    weight: float
    handshakes: int
    handshake_p95_s: float | None
    alpn_match: float | None
    locked: bool
    kept: int


@define(eq=False)
class _Standing:
    """What is known of one endpoint."""

    edge: Edge
    factor: float = 1.0
    handshakes: deque[float] = field(factory=lambda: deque(maxlen=WINDOW))
    matches: deque[bool] = field(factory=lambda: deque(maxlen=WINDOW))

    @property
    def weight(self) -> float:
        return self.edge.weight * self.factor

    @property
    def p95_s(self) -> float | None:
        ordered = sorted(self.handshakes)
        return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None

    @property
    def match(self) -> float | None:
        return sum(self.matches) / len(self.matches) if self.matches else None

    @property
    def locked(self) -> bool:
        return len(self.matches) >= LEAST_TO_LOCK and (self.match or 0.0) > LOCK_ABOVE


class EdgeRouter:
    """Decides for one client, or for all clients of one process.

    Args:
        edges: All there are.
    """

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._standings = {edge.url: _Standing(edge) for edge in edges.edges}
        self._kept: dict[Affinity, tuple[str, float]] = {}  # endpoint and until when; used last comes last

    def choose(self, affinity: Affinity, now_s: float, wait_s: Callable[[str], float]) -> str:
        """Returns the URL of the endpoint to connect to.

        Args:
            affinity: Whose.
            now_s: The present, in seconds on a clock that does not go back.
            wait_s: How long it will be until an endpoint may be used: 0 for now, infinite for not known. If
                there is none that may be used now, the one with the shortest wait is taken, and not kept.
        """
        kept = self._kept.get(affinity)
        if kept is not None:
            url, until_s = kept
            if wait_s(url) <= 0 and (now_s < until_s or self._standings[url].locked):
                self._kept[affinity] = self._kept.pop(affinity)
                return url
        for tier in self._tiers(affinity):
            for url in ranking(affinity.text, {url: self._standings[url].weight for url in tier}):
                if wait_s(url) <= 0:
                    self._keep(affinity, url, now_s)
                    return url
        nearest = ranking(affinity.text, {url: each.weight for url, each in self._standings.items()})
        return min(nearest, key=wait_s)

    def _tiers(self, affinity: Affinity) -> Iterable[Sequence[str]]:
        """Yields those of its protocol in its region, all of its protocol, and all."""
        edges = self._edges.edges
        fit = [edge for edge in edges if not edge.protocols or affinity.protocol in edge.protocols]
        yield [edge.url for edge in fit if affinity.region is not None and edge.region == affinity.region]
        yield [edge.url for edge in fit]
        yield [edge.url for edge in edges]

    def _keep(self, affinity: Affinity, url: str, now_s: float) -> None:
        self._kept.pop(affinity, None)
        self._kept[affinity] = url, now_s + self._edges.sticky_s.get(affinity.protocol, OTHER_STICKY_S)
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def note_handshake(self, url: str, seconds: float, *, alpn_matched: bool | None) -> None:
        """A connection was opened.

        Args:
            url: Where; one that is no endpoint of these is passed over.
            seconds: How long that took.
            alpn_matched: Whether TLS agreed on the protocol that was asked for; None without TLS.
        """
        standing = self._standings.get(url)
        if standing is None:
            return
        standing.handshakes.append(seconds)
        if alpn_matched is not None:
            standing.matches.append(alpn_matched)
        good = (standing.p95_s or 0.0) < GOOD_HANDSHAKE_S
        standing.factor = min(MOST, standing.factor * RISE) if good else max(LEAST, standing.factor / RISE)

    def statistics(self) -> tuple[EdgeStatistics, ...]:
        """Every endpoint, in the order given. Any thread may ask."""
        kept = [url for url, _ in tuple(self._kept.values())]
        return tuple(
            EdgeStatistics(
                url=url,
                weight=standing.weight,
                handshakes=len(standing.handshakes),
                handshake_p95_s=standing.p95_s,
                alpn_match=standing.match,
                locked=standing.locked,
                kept=kept.count(url),
            )
            for url, standing in self._standings.items()
        )

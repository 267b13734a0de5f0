"""Weighted sharing between tenants: who is next, when there isn't enough for all. Pure arithmetic.

A *flow* is one tenant's work in one priority class. Its *lead* is what it has been given, divided by its
weight, beyond the flow that is most behind. Whoever has the least lead is next, and what it takes while
another one waits is added to its lead: so flows that always want more get shares as their weights, by what
they really took. Classes share in the same way above the flows, each class weighing `CLASS_RATIO` times the
one below: a class leaves the others a trickle, never nothing.

History is no punishment: what a flow takes while nobody waits counts for nothing, and a flow that got all it
wanted is level with the one that is most behind: it saves nothing up either.

**The bound.** Let a flow of weight w want something, in a class where the flows that want something meanwhile
are n and weigh W together, itself included; let c be the most that is taken at once. Leads stay at or under c
divided by the weight, so before its turn comes the others in its class take at most
``T = c * ((W - w) / w + n - 1)``. With m classes that want something, of weights that add up to V, its own
being v, the other classes take at most ``(V - v) * (c + T) / v + (m - 1) * c`` in that time. Within a flow it
is first come, first served. The state machine of `test_fair_queue.py` holds all of this against a model.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Generic, NamedTuple, TypeVar

__all__ = ["CLASS_RATIO", "FairQueue", "Flow", "Round"]

CLASS_RATIO = 16
"""How much more a class weighs than the one below: the lower gets 6 %, so that nobody starves. Picked."""

_Item = TypeVar("_Item")


class Flow(NamedTuple):
    """One tenant's work in one class.

    Attributes:
        priority: The class; a higher number goes first.
        tenant: Whose work.
    """

    priority: int
    tenant: str


class FairQueue:
    """Remembers who has had how much of one resource.

    Args:
        weights: Of the flows, above 0; looked up when needed, 1 for a flow that isn't there.
    """

    def __init__(self, weights: Mapping[Flow, float]) -> None:
        self._weights = weights
        self._leads: dict[Flow, float] = {}  # those above 0
        self._class_leads: dict[int, float] = {}

    def lead(self, flow: Flow) -> float:
        """What ``flow`` has had beyond the one that is most behind in its class, divided by its weight."""
        return self._leads.get(flow, 0.0)

    def begin(self, wanted: Mapping[Flow, Iterable[_Item]]) -> "Round[_Item]":
        """Start a round of giving; the round before must have ended.

        Args:
            wanted: What each flow wants, oldest first. Flows that are level are served in this order.
        """
        return Round(self, wanted)

    def weight(self, flow: Flow) -> float:
        """The weight of ``flow`` against all others, whatever their class."""
        return self._weights.get(flow, 1.0) * _class_weight(flow.priority)

    def _settle(self, waiting: Iterable[Flow]) -> None:
        behind: dict[int, float] = {}
        for flow in waiting:
            lead = self._leads.get(flow, 0.0)
            behind[flow.priority] = min(lead, behind.get(flow.priority, lead))
        # Of a class in which nobody waits nothing is remembered.
        self._leads = {
            flow: lead - behind[flow.priority]
            for flow, lead in self._leads.items()
            if flow.priority in behind and lead > behind[flow.priority]
        }
        least = min((self._class_leads.get(priority, 0.0) for priority in behind), default=inf)
        self._class_leads = {
            priority: lead - least for priority, lead in self._class_leads.items() if lead > least
        }


class Round(Generic[_Item]):
    """One round: iterate over it for whoever is next, and `charge` for what was taken.

    A flow of which something hasn't come out when the round ends waits; any other one got all it wanted.
    """

    def __init__(self, queue: FairQueue, wanted: Mapping[Flow, Iterable[_Item]]) -> None:
        self._queue = queue
        self._items: dict[Flow, Iterator[_Item]] = {}
        self._next: dict[Flow, _Item] = {}  # of each flow that waits
        self._places: dict[Flow, int] = {}
        self._heaps: dict[int, list[tuple[float, int, Flow]]] = {}
        self._current: Flow | None = None
        for flow, items in wanted.items():
            self._items[flow] = iter(items)
            self._places[flow] = len(self._places)
            if self._advance(flow):
                self._heaps.setdefault(flow.priority, []).append(self._entry(flow))
        self._classes = [self._class_entry(priority) for priority in self._heaps]
        for heap in self._heaps.values():
            heapify(heap)
        heapify(self._classes)

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        self._queue_current()
        if not self._classes:
            raise StopIteration
        _, _, priority = heappop(self._classes)
        _, _, flow = heappop(self._heaps[priority])
        self._current = flow
        item = self._next.pop(flow)
        self._advance(flow)
        return item

    def charge(self, flow: Flow, amount: float, *, rest: _Item | None = None) -> None:
        """Note that ``flow``, of which an item has come out, took ``amount``.

        Args:
            flow: Whose item it was.
            amount: How much.
            rest: What is left of the item, if it was the last one to come out: the flow's next.
        """
        if rest is not None:
            assert flow == self._current, "the rest of an older item"  # noqa: S101
            following = self._next.get(flow)
            self._items[flow] = chain(() if following is None else (following,), self._items[flow])
            self._next[flow] = rest
        queue, priority = self._queue, flow.priority
        itself = flow != self._current and flow in self._next
        if len(self._heaps[priority]) > itself:
            queue._leads[flow] = queue.lead(flow) + amount / queue._weights.get(flow, 1.0)  # noqa: SLF001
        if self._classes:
            lead = queue._class_leads.get(priority, 0.0)  # noqa: SLF001 - a round is a part of its queue
            queue._class_leads[priority] = lead + amount / _class_weight(priority)  # noqa: SLF001

    def end(self) -> None:
        """End the round."""
        self._queue._settle(self._next)  # noqa: SLF001 - as above

    def _advance(self, flow: Flow) -> bool:
        for item in self._items[flow]:
            self._next[flow] = item
            return True
        return False

    def _queue_current(self) -> None:
        """Queue the flow whose item came out last again, now that it has been charged."""
        flow, self._current = self._current, None
        if flow is None:
            return
        heap = self._heaps[flow.priority]
        if flow in self._next:
            heappush(heap, self._entry(flow))
        if heap:
            heappush(self._classes, self._class_entry(flow.priority))

    def _entry(self, flow: Flow) -> tuple[float, int, Flow]:
        return (self._queue.lead(flow), self._places[flow], flow)

    def _class_entry(self, priority: int) -> tuple[float, int, int]:
        return (self._queue._class_leads.get(priority, 0.0), -priority, priority)  # noqa: SLF001 - as above


def _class_weight(priority: int) -> float:
    return float(CLASS_RATIO) ** priority

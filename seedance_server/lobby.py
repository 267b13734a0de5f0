"""Connections that have proved nothing yet: few, brief, and never in the way of a good one.

A visit lasts from accept to WELCOME. Two bounds: so many visits from one address, the rest of that address is
turned away; and so many in all, beyond which the oldest visit gives way once it has had a fair chance. A
handshake takes milliseconds, so the oldest of a full lobby is all but surely a slow drip. Loopback isn't
counted by address: whoever is on the machine is the operator, or a proxy that holds everybody's connections.

It must not know streams or what is said on them.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable

import trio
from attrs import define

__all__ = ["Lobby", "Visit", "address_group"]

FAIR_CHANCE_S = 0.2
"""A visit this old may be ended in favour of a new one: a round trip around the world."""


def address_group(address: str) -> str | None:
    """What counts as one address: an IPv4 itself, an IPv6's /64, None for loopback and what is no IP."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif not ip.is_loopback:
            return str(ipaddress.ip_network((ip, 64), strict=False))
    return None if ip.is_loopback else str(ip)


@define(eq=False)
class Visit:
    """One connection in the lobby.

    Attributes:
        scope: Cancelled when the visit must give way.
        crowded: Its address has too many already: turn it away.
    """

    scope: trio.CancelScope
    crowded: bool
    _group: str | None
    _entered_s: float
    _lobby: Lobby

    def leave(self) -> None:
        """The connection has been welcomed, or is over; safe to repeat."""
        self._lobby._leave(self)  # noqa: SLF001 - two halves of one thing, in one file


class Lobby:
    """Holds the visits.

    Args:
        capacity: Visits in all.
        per_address: Visits of one address.
        is_proxy: Says of which addresses that isn't one, since many come from there.
    """

    def __init__(
        self, capacity: int, per_address: int, is_proxy: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._is_proxy = is_proxy
        self._capacity = capacity
        self._per_address = per_address
        self._visits: dict[Visit, None] = {}  # in order of arrival
        self._by_address: Counter[str] = Counter()
        self._left = trio.Event()

    @property
    def visits(self) -> int:
        """Connections that haven't been welcomed."""
        return len(self._visits)

    async def wait_for_room(self) -> None:
        """Waits until one more may enter: there is a place, or the oldest visit has had its chance.

        Nobody gives way yet: that is for `enter`, once there is somebody to give way to.
        """
        await trio.lowlevel.checkpoint()
        while len(self._visits) >= self._capacity:
            oldest = next(iter(self._visits))
            due_s = oldest._entered_s + FAIR_CHANCE_S  # noqa: SLF001
            if trio.current_time() >= due_s:
                break
            left = self._left
            with trio.move_on_at(due_s):
                await left.wait()

    def enter(self, address: str) -> Visit:
        """Lets a connection in, in place of the oldest where the lobby is full; check ``crowded``."""
        if len(self._visits) >= self._capacity:
            oldest = next(iter(self._visits))
            oldest.scope.cancel()
            self._leave(oldest)
        group = None if self._is_proxy(address) else address_group(address)
        crowded = group is not None and self._by_address[group] >= self._per_address
        visit = Visit(trio.CancelScope(), crowded, group, trio.current_time(), self)
        self._visits[visit] = None
        if group is not None:
            self._by_address[group] += 1
        return visit

    def _leave(self, visit: Visit) -> None:
        if visit not in self._visits:
            return
        del self._visits[visit]
        if visit._group is not None:  # noqa: SLF001
            self._by_address[visit._group] -= 1  # noqa: SLF001
            if not self._by_address[visit._group]:  # noqa: SLF001
                del self._by_address[visit._group]  # noqa: SLF001
        self._left.set()
        self._left = trio.Event()

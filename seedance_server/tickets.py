"""Tickets: a key that was shown once, good for one connection in the next half minute.

A browser can't send a header with a WebSocket, and a key has no place in an address. So a page shows the key
to an HTTP request, gets a ticket, and offers that among the subprotocols. A ticket opens one connection and
is gone; it is kept as a hash, so nothing here that is looked at or dumped opens anything. Of each owner only
the newest are kept: whoever fetches more loses his own oldest.

It must not know keys, connections or how a ticket travels.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

__all__ = ["LIFETIME_S", "Tickets"]

T = TypeVar("T")

LIFETIME_S = 30.0
"""From the answer that brings it to the connection that uses it: a slow phone needs a few seconds."""
_PER_OWNER = 256
"""Tickets that an owner can have at once: as many pages, opened within half a minute."""


class Tickets(Generic[T]):
    """Gives tickets out and takes them back, for things of type ``T``.

    Args:
        clock: Seconds, monotonic.
        make_secret: Makes a ticket that nobody can guess, of letters, digits, ``-`` and ``_``.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = trio.current_time,
        make_secret: Callable[[], str] = secrets.token_urlsafe,
    ) -> None:
        self._clock = clock
        self._make_secret = make_secret
        self._held: dict[str, dict[bytes, tuple[float, T]]] = defaultdict(dict)  # by owner, oldest first
        self._owners: dict[bytes, str] = {}

    def __len__(self) -> int:
        """Tickets that are out, those included that are too old and weren't asked for since."""
        return len(self._owners)

    def issue(self, owner: str, thing: T) -> str:
        """Returns a new ticket.

        Args:
            owner: Whose allowance it counts against.
            thing: What `redeem` gives for it.
        """
        self._forget_old(owner)
        held = self._held[owner]
        while len(held) >= _PER_OWNER:
            self._drop(owner, next(iter(held)))
        ticket = self._make_secret()
        digest = _digest(ticket)
        held[digest] = (self._clock() + LIFETIME_S, thing)
        self._owners[digest] = owner
        return ticket

    def redeem(self, ticket: str) -> T | None:
        """Takes a ticket back; None if there is no such one, or it is too old."""
        digest = _digest(ticket)
        owner = self._owners.get(digest)
        if owner is None:
            return None
        expires_s, thing = self._held[owner][digest]
        self._drop(owner, digest)
        return thing if self._clock() < expires_s else None

    def _forget_old(self, owner: str) -> None:
        now_s = self._clock()
        for digest in [one for one, (expires_s, _) in self._held[owner].items() if expires_s <= now_s]:
            self._drop(owner, digest)

    def _drop(self, owner: str, digest: bytes) -> None:
        del self._held[owner][digest], self._owners[digest]


def _digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode()).digest()

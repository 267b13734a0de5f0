"""The way of one session, from connection to connection: back to where it was, or on to another endpoint.

After a cut it goes back first, since what it needs is still there; from an endpoint that can't be reached,
leaves, or has no room it goes to another one at once. Where endpoints don't share their sessions it stays
with the first that greeted it. Must not know what a connection carries.
"""

from __future__ import annotations

from seedance_sdk.endpoints import Endpoints
from seedance_sdk.errors import SeedanceError
from seedance_sdk.place import Place
from seedance_sdk.reconnect import Reaction, reaction_to

__all__ = ["Route"]


class Route:
    """Where one session's connections go.

    Args:
        endpoints: The client's.

    Attributes:
        place: Where the present connection goes, or the last one went.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.place = endpoints.choose()
        self._endpoints = endpoints
        self._failed: set[str] = set()  # since the last greeting, or since all had failed
        self._next: Place | None = None  # where to go before any other
        self._redirected: Place | None = None
        self._home: Place | None = None  # the only one that knows the session

    @property
    def bound(self) -> bool:
        """Whether the session is known at the present place only."""
        return self._home is not None

    def choose(self) -> Place:
        """Decides where the next connection goes, and returns it; changes nothing but `place`."""
        former = self.place
        self.place = self._home or self._preferred() or self._endpoints.choose(self._failed)
        if self.place is not former:
            former.circuit.wake()  # whoever waits there waits for another now
        return self.place

    def _preferred(self) -> Place | None:
        place = self._next
        if place is None or place.circuit.wait_s <= 0:
            return place
        return None if self._endpoints.has_other({*self._failed, place.url}) else place

    def greeted(self) -> None:
        """The present connection was greeted."""
        self._failed.clear()
        if not self._endpoints.shared:
            self._home = self.place

    def ended(self, error: SeedanceError, *, greeted: bool) -> bool:
        """The present connection is over, or could not be made.

        Args:
            error: Why.
            greeted: Whether the server had greeted on it.

        Returns:
            Whether the next one should be made elsewhere, now.
        """
        redirected, self._redirected = self._redirected, None
        if self._home is not None:
            return False
        if redirected is not None:
            self._next = redirected
            return True
        if greeted and reaction_to(error) not in {Reaction.MOVE, Reaction.WAIT}:
            self._next = self.place
            return False
        self._next = None
        self._failed.add(self.place.url)
        elsewhere = self._endpoints.has_other(self._failed)
        if not elsewhere:
            self._failed.clear()
        return elsewhere

    def leaves(self, reconnect_to: str | None) -> None:
        """The server leaves, and may say where to go instead; what can't be used is passed over."""
        self._endpoints.leaves(self.place.url)
        if reconnect_to is not None:
            self._redirected = self._endpoints.named(reconnect_to)

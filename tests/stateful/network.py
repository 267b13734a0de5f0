"""Links between clients and nodes that carry whole messages in order, until they are cut anywhere.

A cut loses what is on its way, in both directions, and the two ends learn of it apart: the client may come
back before the node has noticed, and a node may go on sending to nobody. Frames may arrive twice, as from a
proxy that repeats. Nothing else is invented: a WebSocket over TCP does no worse.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from attrs import Factory, define

__all__ = ["Link", "Payload"]

Payload: TypeAlias = bytes | str


@define(eq=False)
class Link:
    """One connection between a client and a node.

    Attributes:
        node: Which node it leads to.
        up: On its way to the node.
        down: On its way to the client, each with whether it may come twice or be lost.
        client_alive: The client has not learnt of an end.
        node_alive: Nor has the node.
        cut: What is put in does not arrive any more.
        close_code: Why the node closed it; the client learns that behind what was sent before.
    """

    node: int = 0
    up: deque[Payload] = Factory(deque)
    down: deque[tuple[Payload, bool]] = Factory(deque)
    client_alive: bool = True
    node_alive: bool = True
    cut: bool = False
    close_code: int | None = None

    def send_up(self, payload: Payload) -> None:
        """The client sends."""
        if not self.cut:
            self.up.append(payload)

    def send_down(self, payload: Payload, *, spare: bool) -> None:
        """The node sends what may come twice, or not at all, if it is ``spare``."""
        if not self.cut:
            self.down.append((payload, spare))

    def break_off(self) -> None:
        """Loses everything on its way; nobody knows yet."""
        self.cut = True
        self.up.clear()
        self.down.clear()

    def close(self, code: int) -> None:
        """The node closes it; what it sent before still arrives, what the client sent is not read."""
        self.node_alive = False
        self.close_code = code
        self.up.clear()

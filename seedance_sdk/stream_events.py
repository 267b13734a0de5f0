"""What happens to a stream beside its text: its place in the queue, its pace, its connections.

Kept for whoever asks, the newest few: nobody need read them, and a reader who does never holds the text up.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import trio
from attrs import frozen

from seedance_sdk.reconnect import ReconnectDetails
from seedance_wire.messages import Flow, FlowAction, Phase, Status

__all__ = [
    "MAX_EVENTS",
    "Flow",
    "FlowAction",
    "Phase",
    "Reconnected",
    "Status",
    "StreamEvent",
    "StreamEvents",
]

MAX_EVENTS = 64
"""Of a stream; the oldest goes first. A server sends few, and only their last state matters. Picked, not
measured."""


@frozen(kw_only=True)
class Reconnected:
    """Another connection goes on with the stream.

    Attributes:
        reconnects: How many times that has happened to the stream.
        outage_s: Seconds without a connection.
    """

    reconnects: int
    outage_s: float


StreamEvent: TypeAlias = Status | Flow | ReconnectDetails | Reconnected
"""`Status`: why there is no text yet. `Flow`: the server goes slower, or faster again, since pieces are not
taken. `ReconnectDetails`: the connection is lost, and when it is tried again. `Reconnected`."""


class StreamEvents:
    """The latest events of one stream.

    Attributes:
        dropped: How many were given up for later ones.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._events: deque[StreamEvent] = deque()
        self._closed = False
        self._news = trio.Event()

    def add(self, event: StreamEvent) -> None:
        """Keeps an event; never waits."""
        if len(self._events) == MAX_EVENTS:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """There will be no more."""
        self._closed = True
        self._wake()

    async def next(self) -> StreamEvent | None:
        """Takes the oldest event that is kept, or waits for one; None after the last.

        If cancelled, it took none.
        """
        await trio.lowlevel.checkpoint()
        while not self._events:
            if self._closed:
                return None
            await self._news.wait()
        return self._events.popleft()

    def put_back(self, event: StreamEvent | None) -> None:
        """Undoes a `next` whose caller never got the event."""
        if event is not None:
            self._events.appendleft(event)
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

"""Where reported events go: what a sink is given, and what it must do.

A sink is run for ever. It takes events, lets them have their effect, and only then commits: what was not
committed when it fails, or the server does, comes again, in the same order and under the same ids. So each
event reaches every sink at least once, and exactly once a sink that keeps the last id beside its effect.
`event_file.EventFile` is one that does.

It must not know the wire or the journal.
"""

from __future__ import annotations

from typing import Protocol

from attrs import field, frozen

__all__ = ["EventFeed", "EventSink", "ReportedEvent"]


@frozen(kw_only=True)
class ReportedEvent:
    """Something that a client reported about a user.

    Attributes:
        id: Its name, the same whenever it comes again: session, batch and place in the batch.
        tenant: The client's.
        session_id: The client's session.
        received_ms: When it was committed, in milliseconds since 1970.
        timestamp: When it happened, likewise, on the client's clock.
        user_id: Whose; the application's own number.
        action: What.
        payload: Whatever belongs to it.
    """

    id: str
    tenant: str
    session_id: str
    received_ms: int
    timestamp: int
    user_id: int
    action: str
    payload: bytes = field(repr=False)


class EventFeed(Protocol):
    """What a sink reads from."""

    async def take(self) -> tuple[ReportedEvent, ...]:
        """Waits for events and returns the next ones, one at least.

        If cancelled, nothing was taken.
        """

    async def commit(self) -> None:
        """Notes that everything taken so far had its effect and need not come again."""


class EventSink(Protocol):
    """Something that reported events go to."""

    @property
    def name(self) -> str:
        """Its name in the journal, under which it goes on after a restart; no two sinks share one."""

    async def run(self, feed: EventFeed) -> None:
        """Takes events for ever; an exception is logged, and after a pause it is run again."""

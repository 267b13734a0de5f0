"""One session's reports on their way: each batch until the server has it for good.

The core keeps a batch and sends it again on every connection; here somebody waits for it. A batch that the
server has no room for is sent again when the server said; one that it refuses for good is its caller's error.
Must not know where batches come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import trio
from attrs import define, field

from seedance_sdk.causes import error_of_wire
from seedance_sdk.errors import InvalidRequest, Overloaded, SeedanceError
from seedance_sdk.outbox import Outbox
from seedance_wire.client_session import ClientSession
from seedance_wire.errors import BacklogFullError, LocalProtocolError
from seedance_wire.messages import Refused, UserEvent

__all__ = ["ReportSender"]

_RETRY_MS = 1_000
"""Where the server does not say when; picked, not measured."""


@define(eq=False)
class _Batch:
    events: Sequence[UserEvent]
    number: int = 0
    retry_after_ms: int | None = None
    error: SeedanceError | None = None
    kept: bool = False
    news: trio.Event = field(factory=trio.Event)


class ReportSender:
    """Sends batches of events.

    Args:
        core: What makes messages.
        outbox: Where they wait for their turn.
        want: Called when a connection is needed.
    """

    def __init__(self, core: ClientSession, outbox: Outbox, want: Callable[[], None]) -> None:
        self._core = core
        self._outbox = outbox
        self._want = want
        self._error: SeedanceError | None = None
        self._batches: list[_Batch] = []

    @property
    def waiting(self) -> int:
        """Batches that the server does not have for good."""
        return len(self._batches)

    async def send(self, events: Sequence[UserEvent]) -> None:
        """Sends events and waits until the server has them for good.

        Raises:
            InvalidRequest: They break a rule of the protocol, or fit no message.
            SeedanceError: The server refused them for good, or the session ended; then it may have them.

        If cancelled, they may have been sent.
        """
        if self._error is not None:
            raise copy(self._error) from self._error
        batch = _Batch(events)
        self._batches.append(batch)
        self._want()
        try:
            self._outbox.add(partial(self._give, batch))
            while not batch.kept:
                await batch.news.wait()
                batch.news = trio.Event()
                if batch.error is not None:
                    raise copy(batch.error) from batch.error
                if batch.retry_after_ms is not None:
                    await trio.sleep(batch.retry_after_ms / 1e3)
                    batch.retry_after_ms = None
                    self._outbox.add(partial(self._core.retry, batch.number))
        finally:
            self._batches.remove(batch)

    def _give(self, batch: _Batch) -> None:
        if batch not in self._batches:
            return  # given up before its turn
        try:
            batch.number = self._core.report(batch.events)
        except BacklogFullError as error:
            batch.error = Overloaded(str(error))
        except LocalProtocolError as error:
            batch.error = InvalidRequest(f"the events can't be reported: {error}", field="events")
        if batch.error is not None:
            batch.news.set()

    def note_checkpoint(self) -> bool:
        """The server said what it has; returns whether a batch of ours is now part of it."""
        kept = [
            batch
            for batch in self._batches
            if batch.number and not batch.kept and not self._core.keeps(batch.number)
        ]
        for batch in kept:
            batch.kept = True
            batch.news.set()
        return bool(kept)

    def refused(self, refused: Refused) -> bool:
        """Takes a refusal; False if it is about something else."""
        for batch in self._batches:
            if batch.number == refused.sequence_id:
                if refused.retryable:
                    batch.retry_after_ms = refused.retry_after_ms or _RETRY_MS
                else:
                    batch.error = error_of_wire(refused)
                batch.news.set()
                return True
        return False

    def fail(self, error: SeedanceError) -> None:
        """The session is over."""
        self._error = error
        for batch in self._batches:
            batch.error = batch.error or error
            batch.news.set()

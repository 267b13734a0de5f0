"""A stream's way into the engine: its place in line, what its readers are told of it, and its turn.

A stream goes in line whenever it wants to generate: new, or back after it was parked. Waiting is bounded for
new ones alone; who had its turn once was promised the rest. Its place is told when it has changed, at most
once a second.

It must not know frames, journals or connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from seedance_server.admission import Admission
from seedance_server.admission_queue import Ticket
from seedance_server.errors import RequestRefused
from seedance_server.prepared import Prepared
from seedance_wire.messages import ErrorCode, Phase, Status

__all__ = ["Turn"]

_TELL_S = 1.0
"""Between two looks at its place: people read no faster, and a thousand may wait."""


class Turn:
    """Of one stream.

    Args:
        stream_id: Its number.
        prepared: Its request.
        admission: Has the line.
        has_begun: Whether it had its turn before, in a process that is no more.
        timeout_s: How long it waits for its first one.
        is_resting: Asked whether its reader holds it up.
        tell: Takes news for its readers.
    """

    def __init__(
        self,
        stream_id: int,
        prepared: Prepared,
        admission: Admission,
        *,
        has_begun: bool,
        timeout_s: float,
        is_resting: Callable[[], bool],
        tell: Callable[[Status], None],
    ) -> None:
        self.has_begun = has_begun
        self._stream_id = stream_id
        self._prepared = prepared
        self._admission = admission
        self._timeout_s = timeout_s
        self._is_resting = is_resting
        self._tell = tell
        self._changed = trio.Event()
        self._ticket: Ticket | None = None
        self._told: int | None = None

    @contextmanager
    def in_line(self, generated: int) -> Iterator[None]:
        """Keeps its place, in line and then in the engine.

        Args:
            generated: Tokens that it has got before.
        """
        self._ticket = self._admission.join(
            self._prepared,
            generated=generated,
            is_returning=self.has_begun,
            is_resting=self._is_resting,
            on_turn=self.note_change,
        )
        try:
            yield
        finally:
            ticket, self._ticket, self._told = self._ticket, None, None
            self._admission.quit(ticket)

    async def wait(self, until_s: Callable[[], float]) -> bool:
        """Waits until it is its turn; at once, without a checkpoint, if there is room.

        Args:
            until_s: Asked until when it still wants its turn; again after each `note_change`.

        Returns:
            False if that time came first.

        Raises:
            RequestRefused: OVERLOADED: it has waited too long.
        """
        ticket = self._ticket
        assert ticket is not None  # noqa: S101 - in line
        give_up_s = float("inf") if self.has_begun else ticket.joined_s + self._timeout_s
        while not ticket.is_granted:
            now_s = trio.current_time()
            if now_s >= until_s():
                return False
            if now_s >= give_up_s:
                raise RequestRefused(
                    ErrorCode.OVERLOADED,
                    "the engine has too much to do: try again",
                    retry_after_ms=self._admission.wait_ms(),
                )
            self._tell_place(ticket)
            self._changed = trio.Event()
            with trio.move_on_at(min(until_s(), give_up_s, now_s + _TELL_S)):
                await self._changed.wait()
        if not self.has_begun:
            self.has_begun = True
            self._admission.note_begun(self._prepared.tenant)
        return True

    def _tell_place(self, ticket: Ticket) -> None:
        position, wait_ms = self._admission.place(ticket)
        if position != self._told:
            self._told = position
            self._tell(
                Status(
                    stream_id=self._stream_id,
                    phase=Phase.QUEUED,
                    position=position,
                    estimated_wait_ms=wait_ms,
                )
            )

    def note_started(self) -> None:
        """The engine has begun with it; safe to repeat."""
        if self._ticket is not None and not self._ticket.has_started:
            self._admission.note_started(self._ticket)

    def note_resting(self) -> None:
        """Its reader holds it up: somebody else may have its room."""
        self._admission.advance()

    def note_change(self) -> None:
        """Something that it waits for may have changed."""
        self._changed.set()

    def note_reader(self) -> None:
        """Somebody reads it who wasn't told its place."""
        self._told = None
        self.note_change()

"""The generations of one session: where each is on its way from its request to its last frame.

A generation is live from the moment it has its place, under its request's number until that is answered, and
under its stream's until the last frame. Whatever the server says of one finds it here. Must not know of
connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import trio

from seedance_sdk.causes import error_of_loss, error_of_wire
from seedance_sdk.errors import InvalidRequest, RequestTooLarge, SeedanceError
from seedance_sdk.generation import Generation
from seedance_sdk.parameters import Request
from seedance_sdk.reconnect import ReconnectDetails
from seedance_wire.client_session import StreamLost
from seedance_wire.errors import LocalProtocolError, MessageTooLargeError
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Error,
    Flow,
    FlowAction,
    Flush,
    Frame,
    Refused,
    Resumed,
    Status,
)

__all__ = ["Generations"]


class Generations:
    """Those of one session.

    Args:
        on_leaving: Called when one is over or given up.

    Attributes:
        places: One for each stream that the server allows; a request holds one until it is over.
    """

    def __init__(self, on_leaving: Callable[[], object]) -> None:
        self.places = trio.CapacityLimiter(0)
        self._on_leaving = on_leaving
        self._live: set[Generation] = set()
        self._asked: dict[int, Generation] = {}  # by sequence id, until answered
        self._streams: dict[int, Generation] = {}  # by stream id, until their last frame

    def __len__(self) -> int:
        return len(self._live)

    @property
    def read(self) -> int:
        """How many are meant for a reader of this client: all but detached ones."""
        return sum(not generation.detached for generation in self._live)

    def uncancelled(self) -> Iterator[int]:
        """Yields the streams that nobody has cancelled, nor left to somebody else."""
        for stream_id, generation in self._streams.items():
            if not (generation.detached or generation.cancel_requested):
                yield stream_id

    # ---- on their way

    def begin(self, generation: Generation) -> None:
        """It is live; a request has its place."""
        self._live.add(generation)

    def ask(self, generation: Generation, submit: Callable[[], int]) -> None:
        """Its request goes out, under the number that ``submit`` returns; or it ends, as that can't be."""
        try:
            sequence_id = submit()
        except MessageTooLargeError as error:
            self.refuse(generation, RequestTooLarge(f"the request is too large: {error}"))
        except LocalProtocolError as error:
            self.refuse(generation, InvalidRequest(str(error)))
        else:
            generation.sent = True
            self._asked[sequence_id] = generation

    def take_up(self, stream_id: int, generation: Generation) -> None:
        """It is the rest of this stream."""
        self.begin(generation)
        self._streams[stream_id] = generation

    def note_disconnected(self) -> None:
        """The connection is lost, or could not be made."""
        for generation in self._live:
            generation.times.disconnected()

    def note_attempt(self, details: ReconnectDetails) -> None:
        """The connection is lost, and is tried again."""
        for generation in self._live:
            generation.events.add(details)

    def note_reconnect(self, outage_s: float) -> None:
        """Another connection goes on with all streams, after so many seconds."""
        for generation in self._streams.values():
            generation.note_reconnect(outage_s)

    def handle(self, event: object, session_id: str) -> bool:
        """Takes what the server says of one; what is of nobody is passed over.

        Args:
            event: What it says.
            session_id: In which session.

        Returns:
            Whether that is progress: an answer, or a piece of one. That a request or a stream is known again
            is none, for a server may fail at it each time.

        Raises:
            ProtocolError: The server sent more than it may.
        """
        match event:
            case Delta() | Flush() | Error():
                self.deliver(event)
            case Accepted():
                self._accepted(event, session_id)
                return not event.replayed
            case Refused():
                self._refused(event)
            case Resumed():
                self._resumed(event, session_id)
                return False
            case Flow() | Status():
                self._tell(event)
                return False
            case _:
                return False
        return True

    def _accepted(self, accepted: Accepted, session_id: str) -> None:
        generation = self._asked.pop(accepted.sequence_id, None)
        if generation is not None:  # else it was failed while the session closes
            self._streams[accepted.stream_id] = generation
            kept = accepted.durability is not Durability.NONE
            generation.accept(accepted.stream_id, session_id, kept=kept)

    def _refused(self, refused: Refused) -> None:
        generation = self._asked.pop(refused.sequence_id, None)
        if generation is not None:
            self.refuse(generation, error_of_wire(refused))

    def _resumed(self, resumed: Resumed, session_id: str) -> None:
        generation = self._streams.get(resumed.stream_id)
        if generation is not None:
            generation.times.goes_on(resumed.last_id)
            if not generation.stream_id:
                generation.accept(resumed.stream_id, session_id, kept=True)

    def _tell(self, event: Flow | Status) -> None:
        generation = self._streams.get(event.stream_id)
        if generation is not None:
            generation.events.add(event)
            if isinstance(event, Flow):
                generation.times.held_back(event.action is not FlowAction.RUN)

    def deliver(self, frame: Frame) -> None:
        """Gives a frame to its generation, if that is still there.

        Raises:
            ProtocolError: The server sent more than it may.
        """
        generation = self._streams.get(frame.stream_id)
        if generation is None:
            return
        generation.deliver(frame)
        if generation.ended:
            del self._streams[frame.stream_id]
            self.leave(generation)

    # ---- the end

    def lose(self, event: StreamLost, ended_by: SeedanceError | None) -> None:
        """A stream, or a request that was not answered, can't be had any more."""
        waiting = self._asked if event.stream_id is None else self._streams
        generation = waiting.pop(event.stream_id or event.sequence_id or 0, None)
        if generation is not None:
            self.refuse(generation, error_of_loss(event, ended_by))

    def shed(self, error: SeedanceError) -> int | None:
        """Fails the longest request that waits for its answer; returns its number, if there was one."""
        if not self._asked:
            return None
        number = max(self._asked, key=lambda number: len(repr(self._asked[number].request)))
        self.refuse(self._asked.pop(number), error)
        return number

    def refuse(self, generation: Generation, error: SeedanceError) -> None:
        """It ends with this error."""
        generation.fail(error)
        self.leave(generation)

    def leave(self, generation: Generation) -> None:
        """It is over; its place is free. Safe to repeat."""
        if generation in self._live:
            self._live.discard(generation)
            if isinstance(generation.request, Request):
                self.places.release_on_behalf_of(generation)
            self._on_leaving()

    def fail(self, error: SeedanceError) -> None:
        """All of them end, and nobody waits for a place any more."""
        for generation in self._live:
            generation.fail(error)
        self._live.clear()
        self._asked.clear()
        self._streams.clear()
        self.places.total_tokens = math.inf

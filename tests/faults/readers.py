"""Applications under fault tests: they read streams through the SDK, slowly, and write down what they got.

The record is taken from the chunks alone, never from what the SDK says of itself. A reader starts a new
stream when one has ended, so that there are always as many live ones as readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
from attrs import Factory, define, field, frozen

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.limits import Limits
from seedance_sdk.transport import Connector, Transport
from tests.faults.history import ClientRecord, Piece
from tests.faults.journal_file import StreamName

__all__ = ["Answer", "NotingConnector", "Recovery", "Request", "StoryReader"]


@frozen
class Request:
    """What to ask, and what an undisturbed server answers to it; None if that is not known."""

    options: Mapping[str, Any]
    expected: str | None = None


@frozen
class NotingConnector:
    """A connector that tells when a connection stands, which is when the server took the upgrade."""

    inner: Connector
    on_connected: Callable[[], None]

    def __call__(self, endpoint: Endpoint, limits: Limits) -> AbstractAsyncContextManager[Transport]:
        """See `Connector`."""
        return self._connect(endpoint, limits)

    @asynccontextmanager
    async def _connect(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        async with self.inner(endpoint, limits) as transport:
            self.on_connected()
            yield transport


@frozen
class Recovery:
    """How one stream came through one fault.

    Attributes:
        waited_s: From the fault until the client's first connection after it.
        resumed_s: From there to the stream's first new piece.
    """

    waited_s: float
    resumed_s: float


@define
class Answer:
    """One stream as its reader got it."""

    name: StreamName
    record: ClientRecord
    reconnects: int


@define(eq=False)
class StoryReader:
    """One application.

    Attributes:
        client: Shared with other readers.
        next_request: Gives the next request.
        pause_s: What the application does with a piece before it takes the next one.
        answers: Streams that ended, in order.
        wrong: Answers that differ from the undisturbed one.
        pieces: Pieces taken so far.
        live: Whether it is in the middle of a stream.
    """

    client: AsyncSeedanceClient
    next_request: Callable[[], Request]
    clock: Callable[[], float]
    pause_s: float = 0.005
    answers: list[Answer] = Factory(list)
    wrong: list[str] = Factory(list)
    recoveries: list[Recovery] = Factory(list)
    pieces: int = 0
    live: bool = False
    _fault_at: float | None = None
    _connected_at: float | None = None
    _pieced: trio.Event = field(factory=trio.Event)

    def note_fault(self) -> None:
        """The connection, or the server, is being ended now; times run from here."""
        self._fault_at, self._connected_at = self.clock(), None

    def note_connected(self) -> None:
        """A connection stands; the first after a fault counts."""
        if self._fault_at is not None and self._connected_at is None:
            self._connected_at = self.clock()

    async def wait_for_pieces(self, count: int) -> None:
        """Returns when so many more pieces of a live stream have been taken."""
        wanted = self.pieces + count
        while self.pieces < wanted:
            await self._pieced.wait()

    async def read_until(self, enough: trio.Event) -> None:
        """Reads stream after stream; the one that is running when ``enough`` is set is read to its end."""
        while not enough.is_set():
            await self.read_one()

    async def read_one(self) -> None:
        """Reads one stream to its end."""
        request = self.next_request()
        send = self.client.chat if "messages" in request.options else self.client.complete
        stream = await send(**request.options, stream=True)
        record = ClientRecord()
        async for chunk in stream:
            if chunk.finish_reason is not None:
                record.ends += 1
            else:
                record.pieces.append(Piece(chunk.id, chunk.offset, chunk.delta))
            self._note_piece(chunk.received_at)
            self.live = chunk.finish_reason is None
            await trio.sleep(self.pause_s)
        self.answers.append(Answer((stream.session_id, stream.id), record, stream.reconnects))
        if request.expected is not None and record.text != request.expected:
            self.wrong.append(f"{request.options}: {record.text!r}, not {request.expected!r}")

    def _note_piece(self, received_at: float) -> None:
        self.pieces += 1
        self._pieced.set()
        self._pieced = trio.Event()
        if (
            self._connected_at is not None
            and self._fault_at is not None
            and received_at >= self._connected_at
        ):
            waited_s, resumed_s = self._connected_at - self._fault_at, received_at - self._connected_at
            self.recoveries.append(Recovery(waited_s, resumed_s))
            self._fault_at = self._connected_at = None

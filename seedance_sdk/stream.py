"""The stream that an application iterates with ``async for``, on trio or asyncio."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from seedance_sdk.completion import Chunk, Completion
from seedance_sdk.errors import ClientClosed
from seedance_sdk.face import StreamFace
from seedance_sdk.passage import Passage
from seedance_sdk.reading import Reading
from seedance_sdk.stream_events import StreamEvent

__all__ = ["AsyncEvents", "AsyncStream"]


class AsyncStream(StreamFace):
    """An answer, piece by piece.

    ``async for`` yields a `Chunk` for each piece and a last one with the finish reason, usage and timing. Any
    number of tasks may read different streams; if several read one, each chunk goes to one of them. A stream
    that is not read holds back only itself.

    Resource handling: leave it by reading to the end, by ``async with``, or by `aclose`; each but the first
    cancels the generation on the server. One that is dropped, as a cancelled task drops it, is cancelled when
    it is collected.

    Error handling: iteration raises `SeedanceError` when the stream fails, after everything that arrived
    before; `text` and `last_id` keep what was received. Cancelling a read that waits loses nothing. A lost
    connection is no failure: the client connects again and the iteration goes on with the next piece, each
    exactly once. It fails with `ConnectionLost` if that takes longer than ``limits.reconnect_timeout_s``, and
    with a `StreamLost` if the server does not have the rest any more.

    Made by `AsyncSeedanceClient.chat`, `AsyncSeedanceClient.complete` and `AsyncSeedanceClient.resume`.
    """

    def __init__(self, passage: Passage, reading: Reading) -> None:
        super().__init__(passage, reading)
        self._passage = passage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._passage.call(self._reading.receive, undo=self._reading.put_back)  # as `receive`
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def receive(self) -> Chunk | None:
        """Takes the next chunk, or None after the last one.

        Raises:
            RequestTimeout: Nothing came for ``timeout`` seconds; the generation is cancelled.
            DeadlineExceeded: ``deadline`` passed; the generation is cancelled.
            StreamClosed: The stream was closed by its reader.
            SeedanceError: The stream failed, see `seedance_sdk.errors`.
        """
        return await self._passage.call(self._reading.receive, undo=self._reading.put_back)

    async def collect(self) -> Completion:
        """Reads to the end and returns the whole answer, what was read before included.

        If it fails or is cancelled, the generation is cancelled as by `aclose`.
        """
        return await self._passage.call(self._reading.collect)

    def events(self) -> AsyncEvents:
        """What happens to the stream beside its text, for ``async for`` in a task of its own."""
        return AsyncEvents(self._passage, self._reading)

    async def aclose(self) -> None:
        """Leaves the stream: cancels the generation, drops what is buffered, waits for no server."""
        with suppress(ClientClosed):  # then it was left with its client
            await self._passage.call(self._reading.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._passage.read(self._reading.abandon)


class AsyncEvents:
    """What happens to a stream beside its text: see `StreamEvent`.

    Ends with the stream. The last 64 that nobody took are kept, from the stream's beginning on; each goes to
    one reader. Reading them is never needed, and never holds the text up.
    """

    def __init__(self, passage: Passage, reading: Reading) -> None:
        self._passage = passage
        self._reading = reading

    @property
    def dropped(self) -> int:
        """How many events were given up for later ones."""
        return self._reading.events.dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        events = self._reading.events
        event = await self._passage.call(events.next, undo=events.put_back)
        if event is None:
            raise StopAsyncIteration
        return event

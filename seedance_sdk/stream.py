"""The stream that an application iterates, on trio.

A thin handle over a `Generation`: it adds the caller's time bounds, keeps what was received, and makes sure
that a stream which nobody reads any more is cancelled on the server. The session holds the generation and
never this handle, so that an abandoned one is collected and says so.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

import trio

from seedance_sdk.completion import Chunk, Completion
from seedance_sdk.errors import DeadlineExceeded, RequestTimeout, SeedanceError, StreamClosed
from seedance_sdk.generation import Generation
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import TokenLogprob

__all__ = ["AsyncStream", "out_of_time"]


def out_of_time(deadline: float, timeout_s: float) -> DeadlineExceeded | RequestTimeout:
    """Returns the error for a wait that ended at ``deadline`` or after ``timeout_s``."""
    if trio.current_time() >= deadline:
        return DeadlineExceeded("the request's deadline has passed")
    return RequestTimeout(f"the server sent nothing for {timeout_s:g} s")


class AsyncStream:
    """An answer, piece by piece.

    ``async for`` yields a `Chunk` for each piece and a last one with the finish reason, usage and timing. Any
    number of tasks may read different streams; if several read one, each chunk goes to one of them. A stream
    that is not read holds back only itself.

    Resource handling: leave it by reading to the end, by ``async with``, or by `aclose`; each but the first
    cancels the generation on the server. One that is dropped is cancelled when it is collected.

    Error handling: iteration raises `SeedanceError` when the stream fails, after everything that arrived
    before; `text` and `last_id` keep what was received. Cancelling a read that waits loses nothing. A lost
    connection is no failure: the client connects again and the iteration goes on with the next piece, each
    exactly once. It fails with `ConnectionLost` if that takes longer than ``limits.reconnect_timeout_s``, and
    with a `StreamLost` if the server does not have the rest any more.

    Made by `AsyncSeedanceClient.chat`, `AsyncSeedanceClient.complete` and `AsyncSeedanceClient.resume`.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._token = trio.lowlevel.current_trio_token()
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._last: Chunk | None = None
        self._first_id, self._first_byte = generation.taken_id, generation.taken_bytes

    def __repr__(self) -> str:
        end = self._last.finish_reason if self._last else None
        return f"<AsyncStream {self.id}: {len(self.text)} characters, {end or 'open'}>"

    @property
    def id(self) -> int:
        """The server's number for this stream in its session."""
        return self._generation.stream_id

    @property
    def session_id(self) -> str:
        """The session that the stream belongs to."""
        return self._generation.session_id

    @property
    def bookmark(self) -> Bookmark:
        """Where the reader is: after the last chunk taken. Another client can go on from there.

        Store it together with the effect of that chunk, and a program that dies goes on where it was, with no
        piece lost and none used twice. It holds a secret: whoever has it can read the session's streams.

        Raises:
            Unsupported: The server does not keep this stream.
        """
        return self._generation.bookmark

    @property
    def reconnects(self) -> int:
        """How many times the connection was lost and restored under this stream."""
        return self._generation.reconnects

    @property
    def text(self) -> str:
        """Everything received so far, of a resumed stream what came after its bookmark."""
        return "".join(self._pieces)

    @property
    def last_id(self) -> int:
        """Id of the last chunk received; before the first 0, or what the bookmark says."""
        return self._last.id if self._last else self._first_id

    @property
    def received_bytes(self) -> int:
        """The offset of the chunk that comes next: UTF-8 bytes of the answer before it."""
        return self._last.offset + len(self._last.delta.encode()) if self._last else self._first_byte

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self.receive()
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
        if self._last is not None and self._last.finish_reason is not None:
            await trio.lowlevel.checkpoint()
            return None
        timeout_s = self._generation.request.timeout_s
        try:
            with trio.move_on_at(min(trio.current_time() + timeout_s, self._generation.deadline)) as scope:
                chunk = await self._generation.receive()
            if scope.cancelled_caught:
                error = out_of_time(self._generation.deadline, timeout_s)
                self._generation.abandon(error)
                raise error
        except SeedanceError as error:
            error.partial = self.text
            raise
        if chunk is not None:
            self._pieces.append(chunk.delta)
            self._logprobs += chunk.logprobs
            self._last = chunk
        return chunk

    async def collect(self) -> Completion:
        """Reads to the end and returns the whole answer, what was read before included.

        If it fails or is cancelled, the generation is cancelled as by `aclose`.
        """
        async with self:
            async for _ in self:
                pass
        last = self._last
        if last is None or last.finish_reason is None or last.usage is None or last.timing is None:
            raise StreamClosed("another reader took the end of this stream")
        return Completion(
            id=self.id,
            session_id=self.session_id,
            text=self.text,
            finish_reason=last.finish_reason,
            stop=last.stop,
            usage=last.usage,
            timing=last.timing,
            logprobs=tuple(self._logprobs),
        )

    def cancel(self) -> None:
        """Asks the server to end the answer, and returns at once.

        Iteration goes on: through what was sent before the server heard of it, to a last chunk with
        ``finish_reason`` "cancelled". To hear no more of it use `aclose`. Repeating it changes nothing.
        """
        self._generation.cancel()

    def detach(self) -> Bookmark:
        """Leaves the stream to another reader: cancels nothing, and returns where that one goes on.

        What was not taken is dropped here, and sent again to whoever resumes. Closing the client cancels
        nothing of it either.

        Raises:
            Unsupported: The server does not keep this stream.
        """
        bookmark = self._generation.bookmark
        self._generation.detach()
        return bookmark

    async def aclose(self) -> None:
        """Leaves the stream: cancels the generation, drops what is buffered, never waits."""
        self.abandon()
        await trio.lowlevel.checkpoint()

    def abandon(self) -> None:
        """What `aclose` does, for code that can't await."""
        self._generation.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abandon()

    def __del__(self) -> None:
        # Runs on any thread, at any moment: only this call of trio's is allowed there.
        generation = getattr(self, "_generation", None)
        if generation is None or generation.ended:
            return
        with suppress(trio.RunFinishedError):  # then its connection is gone, and the generation with it
            self._token.run_sync_soon(generation.abandon)

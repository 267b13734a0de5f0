"""One reader's side of a stream, on trio: time bounds, and what it has received so far.

A thin handle over a `Generation`, which makes sure that a stream which nobody reads any more is cancelled on
the server: the session holds the generation and never this, so that one which is dropped is collected and
says so. What a user holds is a face of it, see `stream` and `blocking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio

from seedance_sdk.completion import Chunk, Completion
from seedance_sdk.errors import DeadlineExceeded, RequestTimeout, SeedanceError, StreamClosed
from seedance_sdk.generation import Generation
from seedance_sdk.received import Received
from seedance_sdk.stream_events import StreamEvents
from seedance_wire.bookmark import Bookmark

__all__ = ["Reading", "out_of_time"]


def out_of_time(deadline: float, timeout_s: float) -> DeadlineExceeded | RequestTimeout:
    """Returns the error for a wait that ended at ``deadline`` or after ``timeout_s``."""
    if trio.current_time() >= deadline:
        return DeadlineExceeded("the request's deadline has passed")
    return RequestTimeout(f"the server sent nothing for {timeout_s:g} s")


class Reading:
    """The reading of one stream. Properties may be read in any thread, all else happens on trio.

    Attributes:
        received: What its reader has had so far.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._token = trio.lowlevel.current_trio_token()
        self._failed = False
        self.received = Received(generation.taken_id, generation.taken_bytes)

    @property
    def id(self) -> int:
        """The server's number for the stream."""
        return self._generation.stream_id

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return self._generation.session_id

    @property
    def reconnects(self) -> int:
        """How many times the connection was restored under it."""
        return self._generation.reconnects

    @property
    def extra(self) -> Mapping[str, object]:
        """The request's labels."""
        return self._generation.request.extra

    @property
    def unfinished(self) -> bool:
        """Whether its reader can expect more of it."""
        return not (self.received.whole or self._generation.discarding or self._failed)

    @property
    def bookmark(self) -> Bookmark:
        """Where the reader is; see `AsyncStream.bookmark`."""
        return self._generation.bookmark

    @property
    def events(self) -> StreamEvents:
        """What happens beside the text."""
        return self._generation.events

    async def receive(self) -> Chunk | None:
        """Takes the next piece; see `AsyncStream.receive`."""
        if self.received.whole:
            await trio.lowlevel.checkpoint()
            return None
        generation, now = self._generation, trio.current_time()
        timeout_s = generation.request.timeout_s
        try:
            try:
                chunk = await generation.receive(min(now + timeout_s, generation.deadline))
            except trio.TooSlowError:
                late = out_of_time(generation.deadline, timeout_s)
                generation.abandon(late)
                raise late from None
        except SeedanceError as error:
            self._failed = True
            error.partial = self.received.text
            raise
        if chunk is not None:
            self.received.add(chunk)
        return chunk

    def put_back(self, chunk: Chunk | None) -> None:
        """Undoes a `receive` whose caller never got the piece."""
        if chunk is not None:
            self._generation.put_back(chunk)
            self.received.take_back(chunk)

    async def collect(self) -> Completion:
        """Reads to the end; see `AsyncStream.collect`."""
        try:
            while await self.receive() is not None:
                pass
        finally:
            self.abandon()
        last = self.received.last
        if last is None or last.finish_reason is None or last.usage is None or last.timing is None:
            raise StreamClosed("another reader took the end of this stream")
        return Completion(
            id=self.id,
            session_id=self.session_id,
            text=self.received.text,
            finish_reason=last.finish_reason,
            stop=last.stop,
            usage=last.usage,
            timing=last.timing,
            logprobs=self.received.logprobs,
            extra=self.extra,
        )

    def cancel(self) -> None:
        """Asks the server to end the answer."""
        self._generation.cancel()

    def detach(self) -> Bookmark:
        """Leaves the stream to another reader; see `AsyncStream.detach`."""
        bookmark = self._generation.bookmark
        self._generation.detach()
        return bookmark

    def abandon(self) -> None:
        """Leaves the stream: cancels the generation and drops what is buffered."""
        self._generation.abandon()

    async def aclose(self) -> None:
        """Does that, whether cancelled or not."""
        self.abandon()
        await trio.lowlevel.checkpoint()

    def __del__(self) -> None:
        # Runs on any thread, at any moment: only this call of trio's is allowed there.
        generation = getattr(self, "_generation", None)
        if generation is None or generation.ended:
            return
        with suppress(trio.RunFinishedError):  # then its connection is gone, and the generation with it
            self._token.run_sync_soon(generation.abandon)

"""The client for plain threads: the async one in a background thread, with nothing done twice.

Pieces are fetched one by one as the caller asks for them, so a slow caller slows its own stream and nothing
is stored beyond the stream's window. Any number of threads may use one client at once.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from seedance_sdk.circuit_breaker import CircuitChange, CircuitState
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.completion import Chunk, Completion
from seedance_sdk.limits import Limits
from seedance_sdk.options import Message, Options, ResumeOptions
from seedance_sdk.parameters import Request, chat_request, complete_request
from seedance_sdk.portal import Portal
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.stream import AsyncStream
from seedance_sdk.transport import Connector
from seedance_wire.bookmark import Bookmark

__all__ = ["SeedanceClient", "Stream"]


class Stream:
    """An answer, piece by piece, for plain threads; see `AsyncStream` for what both have in common.

        for chunk in stream:
            print(chunk.delta, end="", flush=True)

    Resource handling: leave it by reading to the end, by ``with``, or by `close`; each but the first cancels
    the generation on the server. So does dropping it, and so does Ctrl-C while it waits.
    """

    def __init__(self, portal: Portal[AsyncSeedanceClient], stream: AsyncStream) -> None:
        self._portal = portal
        self._stream = stream

    def __repr__(self) -> str:
        return repr(self._stream).replace("AsyncStream", "Stream", 1)

    @property
    def id(self) -> int:
        """The server's number for this stream in its session."""
        return self._stream.id

    @property
    def session_id(self) -> str:
        """The session that the stream belongs to."""
        return self._stream.session_id

    @property
    def bookmark(self) -> Bookmark:
        """Where the reader is, for another client to go on; see `AsyncStream.bookmark`."""
        return self._stream.bookmark

    @property
    def reconnects(self) -> int:
        """How many times the connection was lost and restored under this stream."""
        return self._stream.reconnects

    @property
    def text(self) -> str:
        """Everything received so far, of a resumed stream what came after its bookmark."""
        return self._stream.text

    @property
    def last_id(self) -> int:
        """Id of the last chunk received; before the first 0, or what the bookmark says."""
        return self._stream.last_id

    @property
    def received_bytes(self) -> int:
        """The offset of the chunk that comes next: UTF-8 bytes of the answer before it."""
        return self._stream.received_bytes

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._portal.call(lambda _: self._stream.receive(), interrupted=self._stream.abandon)
        if chunk is None:
            raise StopIteration
        return chunk

    def collect(self) -> Completion:
        """Reads to the end and returns the whole answer, what was read before included."""
        return self._portal.call(lambda _: self._stream.collect(), interrupted=self._stream.abandon)

    def cancel(self) -> None:
        """Asks the server to end the answer and returns at once; iteration goes on to the last chunk.

        That chunk has the ``finish_reason`` "cancelled". To hear no more of the answer use `close`.
        """
        self._portal.post(self._stream.cancel)

    def detach(self) -> Bookmark:
        """Leaves the stream to another reader, and returns where that one goes on.

        Cancels nothing, nor does closing the client; see `AsyncStream.detach`.
        """

        async def detach(_: AsyncSeedanceClient) -> Bookmark:
            return self._stream.detach()

        return self._portal.call(detach)

    def close(self) -> None:
        """Leaves the stream: cancels the generation, drops what is buffered, never waits."""
        self._portal.post(self._stream.abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SeedanceClient:
    """A client for plain Python.

        client = SeedanceClient("ws://localhost:8080/v1/chat")
        stream = client.chat(messages=[{"role": "user", "content": "Hi"}], stream=True)
        for chunk in stream:
            print(chunk.delta, end="", flush=True)

    Connects at the first request, in a background thread of its own. Any number of threads may use it at
    once.

    Resource handling: `close` it, or use it as a context manager; one that is dropped, and every one at the
    exit of the process, closes by itself. Closing ends live streams with `ClientClosed`. After a fork make
    another.

    Args:
        url: As for `AsyncSeedanceClient`, as all that follows.
        api_key: By default ``SEEDANCE_API_KEY``.
        limits: Every bound of the client.
        ssl_context: For ``wss``.
        subprotocol: ``seedance.v1``, or ``seedance.v1.json`` to read along.
        on_reconnect: Called in the background thread.
        on_circuit_change: The same.
        connector: Makes transports; for tests.
        clock: Stamps `Chunk.received_at`, in seconds.
        dice: The jitter of the waits.
        wall_clock: Stamps reports, in seconds since 1970.

    Raises:
        ValueError: The URL or the key is malformed, or there is no such subprotocol.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        limits: Limits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        subprotocol: str = "seedance.v1",
        on_reconnect: Callable[[ReconnectDetails], object] | None = None,
        on_circuit_change: Callable[[CircuitChange], object] | None = None,
        connector: Connector | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        limits = limits or Limits()
        client = AsyncSeedanceClient(
            url,
            api_key=api_key,
            limits=limits,
            ssl_context=ssl_context,
            subprotocol=subprotocol,
            on_reconnect=on_reconnect,
            on_circuit_change=on_circuit_change,
            connector=connector,
            clock=clock,
            dice=dice,
            wall_clock=wall_clock,
        )
        self._client = client
        self._description = repr(client).replace("Async", "", 1)
        # Reports, the goodbye, the socket: each has its own bound, and the thread needs a moment around them.
        self._portal = Portal(client, close_timeout_s=3 * limits.close_timeout_s + 1)

    def __repr__(self) -> str:
        return self._description

    @property
    def circuit(self) -> CircuitState:
        """What the endpoint is trusted with; see `CircuitState`."""
        return self._client.circuit

    @overload
    def chat(
        self, *, messages: Iterable[Message], stream: Literal[False] = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def chat(
        self, *, messages: Iterable[Message], stream: Literal[True], **options: Unpack[Options]
    ) -> Stream: ...
    @overload
    def chat(
        self, *, messages: Iterable[Message], stream: bool, **options: Unpack[Options]
    ) -> Completion | Stream: ...
    def chat(
        self, *, messages: Iterable[Message], stream: bool = False, **options: Unpack[Options]
    ) -> Completion | Stream:
        """Answers a conversation; see `AsyncSeedanceClient.chat`. With ``stream`` returns a `Stream`."""
        return self._start(chat_request(messages, options), stream=stream)

    @overload
    def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Completion: ...
    @overload
    def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: Literal[True],
        **options: Unpack[Options],
    ) -> Stream: ...
    @overload
    def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: bool,
        **options: Unpack[Options],
    ) -> Completion | Stream: ...
    def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Completion | Stream:
        """Continues a text or token ids; see `AsyncSeedanceClient.complete`."""
        return self._start(complete_request(prompt, token_ids, options), stream=stream)

    def resume(self, bookmark: Bookmark | str, **options: Unpack[ResumeOptions]) -> Stream:
        """Goes on with a stream that this or another client has begun; see `AsyncSeedanceClient.resume`."""
        resumed = self._portal.call(lambda client: client.resume(bookmark, **options))
        return Stream(self._portal, resumed)

    def report(
        self, action: str, payload: bytes | str = b"", *, user_id: int = 0, timestamp_ms: int | None = None
    ) -> None:
        """Reports something that a user did; see `AsyncSeedanceClient.report`."""

        async def report(client: AsyncSeedanceClient) -> None:
            client.report(action, payload, user_id=user_id, timestamp_ms=timestamp_ms)

        self._portal.call(report)

    def flush_reports(self) -> None:
        """Waits until the server has all reports; see `AsyncSeedanceClient.flush_reports`."""
        self._portal.call(lambda client: client.flush_reports())

    def _start(self, request: Request, *, stream: bool) -> Completion | Stream:
        answer = self._portal.call(lambda client: client.start(request, stream=stream))
        return Stream(self._portal, answer) if isinstance(answer, AsyncStream) else answer

    def close(self) -> None:
        """Says goodbye to the server and ends the background thread; bounded, and safe to repeat."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

"""The async client, on trio, and the core of the blocking one.

Owns the nursery in which sessions live. A request goes to the current session, or to the one whose stream it
continues; where there is none, or it ended, or its server is leaving, a new one is begun, once for all who
wait. Must not know of threads.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Literal, Self, Unpack, overload

import sniffio
import trio

from seedance_sdk.circuit import Circuit
from seedance_sdk.circuit_breaker import CircuitChange, CircuitState
from seedance_sdk.completion import Completion
from seedance_sdk.endpoint import make_endpoint
from seedance_sdk.errors import ClientClosed, StreamNotFound, UnsupportedEventLoop
from seedance_sdk.generation import Generation
from seedance_sdk.limits import Limits
from seedance_sdk.options import Message, Options, ResumeOptions
from seedance_sdk.parameters import (
    Request,
    ResumeRequest,
    chat_request,
    complete_request,
    resume_request,
)
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.reports import Reports
from seedance_sdk.session import Session
from seedance_sdk.stream import AsyncStream, out_of_time
from seedance_sdk.transport import Connector, WebSocketConnector
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import UserEvent

__all__ = ["AsyncSeedanceClient"]


class AsyncSeedanceClient:
    """A client for trio programs.

        async with AsyncSeedanceClient("ws://localhost:8080/v1/chat") as client:
            stream = await client.chat(messages=[{"role": "user", "content": "Hi"}], stream=True)
            async for chunk in stream:
                print(chunk.delta, end="", flush=True)

    It connects at the first request and carries all streams over one connection. When that is lost it
    connects again by itself, with growing, jittered waits, and all streams go on where they were. Only a
    first connection that fails is reported at once: the address or the key may be wrong. Any number of tasks
    may use it at once.

    Resource handling: use it as an async context manager, once. Leaving it says goodbye to the server and
    ends live streams with `ClientClosed`, here and on the server, in ``limits.close_timeout_s`` at most, or
    at once where it is cancelled. A stream that was detached goes on for whoever resumes it.

    Args:
        url: ``ws://host:port/v1/chat`` or ``wss://…``; by default ``SEEDANCE_URL``, else localhost.
        api_key: By default ``SEEDANCE_API_KEY``. Sent with the upgrade, never in the URL.
        limits: Every bound of the client.
        ssl_context: For ``wss``; by default Python's, which checks certificate and host name.
        subprotocol: ``seedance.v1``, or ``seedance.v1.json`` to read along.
        on_reconnect: Called before each attempt to connect again, for logs and counters; must return soon.
        on_circuit_change: Called when the endpoint's circuit breaker opens, half opens or closes; the same.
        connector: Makes transports; for tests, see `seedance_sdk.testing`.
        clock: Stamps `Chunk.received_at`, in seconds.
        dice: Uniform in [0, 1): the jitter of the waits.
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
        self._endpoint = make_endpoint(url, api_key, subprotocol)
        self._limits = limits or Limits()
        self._connector: Connector = connector or WebSocketConnector(ssl_context)
        self._clock = clock
        self._dice = dice
        self._on_reconnect = on_reconnect
        self._circuit = Circuit(
            self._endpoint.url, on_circuit_change, open_max_s=self._limits.circuit_open_max_s
        )
        self._background: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._closed = False
        self._reports = Reports(self._limits, self._send_reports, wall_clock)
        self._current: Session | None = None
        self._sessions: list[Session] = []  # the oldest first

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._endpoint.url}>"

    @property
    def circuit(self) -> CircuitState:
        """What the endpoint is trusted with; see `CircuitState`."""
        return self._circuit.state

    # ---- requests

    @overload
    async def chat(
        self, *, messages: Iterable[Message], stream: Literal[False] = False, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    async def chat(
        self, *, messages: Iterable[Message], stream: Literal[True], **options: Unpack[Options]
    ) -> AsyncStream: ...
    @overload
    async def chat(
        self, *, messages: Iterable[Message], stream: bool, **options: Unpack[Options]
    ) -> Completion | AsyncStream: ...
    async def chat(
        self, *, messages: Iterable[Message], stream: bool = False, **options: Unpack[Options]
    ) -> Completion | AsyncStream:
        """Answers a conversation.

        Args:
            messages: The turns, oldest first: ``{"role": "user", "content": "…"}``.
            stream: True for an `AsyncStream` as soon as the server has accepted, False for the whole
                `Completion`.
            **options: See `Options`: sampling under OpenAI's and vLLM's names, ``model``, ``timeout``,
                ``deadline``.

        Raises:
            TypeError: An option has an unknown name or a wrong type.
            SeedanceError: See `seedance_sdk.errors`.

        If cancelled, the generation is cancelled on the server.
        """
        return await self.start(chat_request(messages, options), stream=stream)

    @overload
    async def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Completion: ...
    @overload
    async def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: Literal[True],
        **options: Unpack[Options],
    ) -> AsyncStream: ...
    @overload
    async def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: bool,
        **options: Unpack[Options],
    ) -> Completion | AsyncStream: ...
    async def complete(
        self,
        *,
        prompt: str | None = None,
        token_ids: Sequence[int] | None = None,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Completion | AsyncStream:
        """Continues a text or token ids as they are, with no chat template.

        Args:
            prompt: The text; give this or ``token_ids``.
            token_ids: Ids of the served model's vocabulary.
            stream: As for `chat`.
            **options: As for `chat`.

        Raises:
            TypeError: Not exactly one input, or an option has an unknown name or a wrong type.
            SeedanceError: See `seedance_sdk.errors`.

        If cancelled, the generation is cancelled on the server.
        """
        return await self.start(complete_request(prompt, token_ids, options), stream=stream)

    async def resume(self, bookmark: Bookmark | str, **options: Unpack[ResumeOptions]) -> AsyncStream:
        """Goes on with a stream that this or another client, in any process, has begun.

        The stream yields what comes after the bookmark, each piece exactly once. The client takes the whole
        session over: if the other one still has it open, that gets `Superseded`. Bookmarks of one session
        can be resumed one after the other.

        Args:
            bookmark: What `AsyncStream.bookmark` said, or its text.
            **options: ``timeout`` and ``deadline``, see `ResumeOptions`.

        Raises:
            TypeError: It is no bookmark, or an option has an unknown name or a wrong type.
            StreamLost: The server does not have the rest of the stream; the subclass says why.
            SeedanceError: See `seedance_sdk.errors`.

        If cancelled, the generation is cancelled on the server.
        """
        return AsyncStream(await self._begin(resume_request(bookmark, options)))

    def report(
        self, action: str, payload: bytes | str = b"", *, user_id: int = 0, timestamp_ms: int | None = None
    ) -> None:
        """Reports something that a user did; it goes to the server in a batch, a little later.

        It is kept and sent again until the server has it for good, and counts there once; only if the server
        forgets the whole session in between it may count twice. Leaving the client waits for what is under
        way, in its bound; `flush_reports` waits for all.

        Args:
            action: What, as a short name: at most 256 bytes.
            payload: Whatever belongs to it, at most 65,536 bytes; a text goes as UTF-8.
            user_id: Whose; a number of yours, of 32 bits with a sign.
            timestamp_ms: When, in milliseconds since 1970; by default now.

        Raises:
            ValueError: A value is out of range.
            ReportsFull: ``limits.max_reports`` or ``max_report_bytes`` wait; nothing was taken.
            SeedanceError: The server refused reports for good.
        """
        nursery = self._usable_nursery()
        self._reports.report(action, payload, user_id=user_id, timestamp_ms=timestamp_ms)
        self._reports.start(nursery)

    async def flush_reports(self) -> None:
        """Waits until the server has everything that was reported so far, for good.

        Raises:
            SeedanceError: The server refused reports for good.
        """
        await self._reports.flush()

    async def _send_reports(self, events: Sequence[UserEvent]) -> None:
        if self._current is None or not self._current.accepts_requests:
            if self._nursery is None:
                raise ClientClosed("the client is closed")
            self._current = self._open(self._nursery, None)
        await self._current.reports.send(events)

    async def start(self, request: Request, *, stream: bool) -> Completion | AsyncStream:
        """Sends a request that was checked before; what `chat` and `complete` end in."""
        opened = AsyncStream(await self._begin(request))
        return opened if stream else await opened.collect()

    async def _begin(self, request: Request | ResumeRequest) -> Generation:
        deadline = float("inf")
        if request.deadline_s is not None:
            deadline = trio.current_time() + request.deadline_s
        with trio.move_on_at(min(trio.current_time() + request.timeout_s, deadline)) as scope:
            if isinstance(request, ResumeRequest):
                return await self._holder_of(request.bookmark).resume(request, deadline)
            return await self._submit(request, deadline)
        assert scope.cancelled_caught  # noqa: S101 - nothing else leads here
        raise out_of_time(deadline, request.timeout_s)

    async def _submit(self, request: Request, deadline: float) -> Generation:
        while True:
            generation = await self._session_for(request).submit(request, deadline)
            if generation is not None:
                return generation

    # ---- sessions

    def _session_for(self, request: Request) -> Session:
        nursery = self._usable_nursery()
        if request.session_id:
            for session in self._sessions:
                if session.id == request.session_id and not session.over:
                    return session
            raise StreamNotFound("the stream to continue is of no session that this client has")
        if self._current is not None and self._current.accepts_requests:
            return self._current
        if request.session_id is not None:
            raise StreamNotFound("the stream to continue is of a session that this client has no more")
        self._current = self._open(nursery, None)
        return self._current

    def _holder_of(self, bookmark: Bookmark) -> Session:
        nursery = self._usable_nursery()
        for session in self._sessions:
            if session.id == bookmark.session_id and not session.over:
                return session
        session = self._open(nursery, bookmark)
        if self._current is None or not self._current.accepts_requests:
            self._current = session
        return session

    def _usable_nursery(self) -> trio.Nursery:
        if self._nursery is None or self._closed:
            need = "is closed" if self._closed else "must be entered first: async with AsyncSeedanceClient(…)"
            raise ClientClosed(f"the client {need}")
        return self._nursery

    def _open(self, nursery: trio.Nursery, bookmark: Bookmark | None) -> Session:
        idle = [session for session in self._sessions if session.idle]
        for session in idle[: max(0, len(self._sessions) + 1 - self._limits.max_sessions)]:
            session.retire()
        session = Session(
            lambda: self._connector(self._endpoint, self._limits),
            self._endpoint.subprotocol,
            self._limits,
            self._clock,
            circuit=self._circuit,
            bookmark=bookmark,
            dice=self._dice,
            on_reconnect=self._on_reconnect,
        )
        self._sessions.append(session)
        nursery.start_soon(self._run, session)
        return session

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            self._sessions.remove(session)

    # ---- its life

    async def __aenter__(self) -> Self:
        library = _running_library()
        if library != "trio":
            raise UnsupportedEventLoop(
                f"AsyncSeedanceClient runs on trio, and this is {library}. Use the blocking SeedanceClient "
                "in a thread (asyncio.to_thread), or run this part of the program with trio.run"
            )
        if self._nursery is not None or self._closed:
            raise ClientClosed("a client can be entered once; make another")
        self._background = trio.open_nursery()
        self._nursery = await self._background.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        background, nursery = self._background, self._nursery
        self._closed = True
        if background is None or nursery is None:
            return None
        # Shielded, but bounded by close_timeout_s; sessions of a caller that is cancelled have ended already.
        with trio.CancelScope(shield=True):
            await self._reports.finish(self._limits.close_timeout_s)
            async with trio.open_nursery() as goodbyes:
                for session in list(self._sessions):
                    goodbyes.start_soon(session.aclose)
        nursery.cancel_scope.cancel()
        # A nursery wraps what its body raises in a group. The caller did not ask for a nursery, so their own
        # exceptions pass it by; only cancellation has to go through it.
        if _has_cancelled(error):
            return await background.__aexit__(kind, error, traceback)
        await background.__aexit__(None, None, None)
        return None


def _running_library() -> str:
    try:
        return sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return "no async library that is known"


def _has_cancelled(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)

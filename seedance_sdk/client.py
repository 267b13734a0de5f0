"""The client for async programs, on trio or asyncio.

On trio its sessions live in the caller's own loop, on asyncio in a background thread that runs trio; the
methods can't tell which. Must not know how sessions work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from seedance_sdk.completion import Completion
from seedance_sdk.conversation import AsyncConversation, make_dialogue
from seedance_sdk.dialogue import WhenLost
from seedance_sdk.errors import ClientClosed
from seedance_sdk.face import ClientFace
from seedance_sdk.options import Message, Options, ResumeOptions
from seedance_sdk.parameters import Request, ResumeRequest, chat_request, complete_request, resume_request
from seedance_sdk.passage import AsyncioPassage, Passage, TrioPassage, running_library
from seedance_sdk.stream import AsyncStream
from seedance_wire.bookmark import Bookmark

__all__ = ["AsyncSeedanceClient"]


class AsyncSeedanceClient(ClientFace):
    """A client for trio and asyncio programs.

        async with AsyncSeedanceClient("ws://localhost:8080/v1/chat") as client:
            stream = await client.chat(messages=[{"role": "user", "content": "Hi"}], stream=True)
            async for chunk in stream:
                print(chunk.delta, end="", flush=True)

    It connects at the first request and carries all streams over few connections. When one is lost it
    connects again by itself, with growing, jittered waits, and all streams go on where they were. Only a
    first connection that fails is reported at once: the address or the key may be wrong. Any number of tasks
    may use it at once.

    Resource handling: use it as an async context manager, once. Leaving it says goodbye to the server and
    ends live streams with `ClientClosed`, here and on the server, in ``limits.close_timeout_s`` at most, or
    at once where it is cancelled. A stream that was detached goes on for whoever resumes it. On asyncio it
    has a background thread until then, at the exit of the process at the latest. After a fork make another.

    Args:
        url: As for `ClientFace`, as everything that it takes by name.
    """

    _passage: Passage | None = None  # how calls reach trio; None until the client is entered

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
        return await self._start(chat_request(messages, options), stream=stream)

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
        return await self._start(complete_request(prompt, token_ids, options), stream=stream)

    def conversation(
        self,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
        when_lost: WhenLost = "resend",
        **options: Unpack[Options],
    ) -> AsyncConversation:
        """Begins a conversation, whose turns send only what is new; see `AsyncConversation`.

        Args:
            system: What the model is told first.
            messages: What was said before, as `AsyncConversation.messages` has it, after ``system``.
            when_lost: ``resend`` or ``raise``, for a server that has the context no more.
            **options: As for `chat`, for every turn.

        Raises:
            TypeError: An option has an unknown name or a wrong type.
        """
        dialogue = make_dialogue(system, messages, when_lost, options)
        return AsyncConversation(self._way, self._sessions, dialogue)

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
        return await self._begin(resume_request(bookmark, options))

    async def _start(self, request: Request, *, stream: bool) -> Completion | AsyncStream:
        if stream:
            return await self._begin(request)
        return await self._way.call(lambda: self._sessions.complete(request))

    async def _begin(self, request: Request | ResumeRequest) -> AsyncStream:
        passage = self._way
        reading = await passage.call(lambda: self._sessions.begin(request), undo=lambda late: late.abandon())
        return AsyncStream(passage, reading)

    # ---- reports

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
        self._way.read(
            lambda: self._sessions.report(action, payload, user_id=user_id, timestamp_ms=timestamp_ms)
        )

    async def flush_reports(self) -> None:
        """Waits until the server has everything that was reported so far, for good.

        Raises:
            SeedanceError: The server refused reports for good.
        """
        await self._way.call(self._sessions.flush_reports)

    # ---- its life

    @property
    def _way(self) -> Passage:
        if self._passage is None:
            raise ClientClosed("the client must be entered first: async with AsyncSeedanceClient(…)")
        return self._passage

    async def __aenter__(self) -> Self:
        if self._passage is not None:
            raise ClientClosed("a client can be entered once; make another")
        if running_library() == "trio":
            self._passage = TrioPassage()
            await self._sessions.__aenter__()
        else:
            self._passage = AsyncioPassage(self._portal)
            await asyncio.to_thread(self._portal.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if isinstance(self._passage, TrioPassage):
            return await self._sessions.__aexit__(kind, error, traceback)
        self._portal.request_close()  # at once, even if what follows is cancelled
        await asyncio.to_thread(self._portal.close)
        return None

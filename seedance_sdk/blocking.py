"""The client for plain threads: what the async one does, in a background thread, with nothing done twice.

Pieces are fetched one by one as the caller asks for them, so a slow caller slows its own stream and nothing
is stored beyond the stream's window. Any number of threads may use one client at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from seedance_sdk.completion import Chunk, Completion
from seedance_sdk.conversation import ConversationFace, make_dialogue
from seedance_sdk.dialogue import Dialogue, WhenLost
from seedance_sdk.face import ClientFace, StreamFace
from seedance_sdk.options import Message, Options, ResumeOptions, TextPart
from seedance_sdk.parameters import Request, ResumeRequest, chat_request, complete_request, resume_request
from seedance_sdk.portal import Portal
from seedance_sdk.reading import Reading
from seedance_sdk.sessions import Sessions
from seedance_sdk.stream_events import StreamEvent
from seedance_wire.bookmark import Bookmark

__all__ = ["Conversation", "Events", "SeedanceClient", "Stream"]


class Stream(StreamFace):
    """An answer, piece by piece, for plain threads; see `AsyncStream` for what both have in common.

        for chunk in stream:
            print(chunk.delta, end="", flush=True)

    Resource handling: leave it by reading to the end, by ``with``, or by `close`; each but the first cancels
    the generation on the server. So does dropping it, and so does Ctrl-C while it waits.
    """

    def __init__(self, portal: Portal[Sessions], reading: Reading) -> None:
        super().__init__(portal, reading)
        self._portal = portal

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self.receive()
        if chunk is None:
            raise StopIteration
        return chunk

    def receive(self) -> Chunk | None:
        """Takes the next chunk, or None after the last one; see `AsyncStream.receive`."""
        return self._portal.call(lambda _: self._reading.receive(), interrupted=self._reading.abandon)

    def collect(self) -> Completion:
        """Reads to the end and returns the whole answer, what was read before included."""
        return self._portal.call(lambda _: self._reading.collect(), interrupted=self._reading.abandon)

    def events(self) -> Events:
        """What happens to the stream beside its text, for a thread of its own; see `AsyncEvents`."""
        return Events(self._portal, self._reading)

    def close(self) -> None:
        """Leaves the stream: cancels the generation, drops what is buffered, waits for no server."""
        self._portal.post(self._reading.abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Events:
    """What happens to a stream beside its text, for plain threads; see `AsyncEvents`."""

    def __init__(self, portal: Portal[Sessions], reading: Reading) -> None:
        self._portal = portal
        self._reading = reading

    @property
    def dropped(self) -> int:
        """How many events were given up for later ones."""
        return self._reading.events.dropped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        event = self._portal.call(lambda _: self._reading.events.next())
        if event is None:
            raise StopIteration
        return event


class Conversation(ConversationFace):
    """A conversation for plain threads; see `AsyncConversation` for what both have in common."""

    def __init__(self, portal: Portal[Sessions], dialogue: Dialogue) -> None:
        super().__init__(portal, dialogue)
        self._portal = portal

    @overload
    def say(
        self,
        content: str | Sequence[TextPart],
        *,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Completion: ...
    @overload
    def say(
        self, content: str | Sequence[TextPart], *, stream: Literal[True], **options: Unpack[Options]
    ) -> Stream: ...
    @overload
    def say(
        self, content: str | Sequence[TextPart], *, stream: bool, **options: Unpack[Options]
    ) -> Completion | Stream: ...
    def say(
        self, content: str | Sequence[TextPart], *, stream: bool = False, **options: Unpack[Options]
    ) -> Completion | Stream:
        """Says something as the user, and gets the answer; see `AsyncConversation.say`."""
        said = self._dialogue
        if not stream:
            return self._portal.call(lambda sessions: said.answer(sessions.begin, content, {**options}))
        reading = self._portal.call(lambda sessions: said.begin(sessions.begin, content, {**options}))
        return Stream(self._portal, reading)


class SeedanceClient(ClientFace):
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
        url: As for `ClientFace`, as everything that it takes by name.
    """

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

    def conversation(
        self,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
        when_lost: WhenLost = "resend",
        **options: Unpack[Options],
    ) -> Conversation:
        """Begins a conversation; see `AsyncSeedanceClient.conversation`."""
        dialogue = make_dialogue(system, messages, when_lost, options)
        return Conversation(self._portal, dialogue)

    def resume(self, bookmark: Bookmark | str, **options: Unpack[ResumeOptions]) -> Stream:
        """Goes on with a stream that this or another client has begun; see `AsyncSeedanceClient.resume`."""
        return self._begin(resume_request(bookmark, options))

    def report(
        self, action: str, payload: bytes | str = b"", *, user_id: int = 0, timestamp_ms: int | None = None
    ) -> None:
        """Reports something that a user did; see `AsyncSeedanceClient.report`."""
        self._portal.start()
        self._portal.read(
            lambda: self._sessions.report(action, payload, user_id=user_id, timestamp_ms=timestamp_ms)
        )

    def flush_reports(self) -> None:
        """Waits until the server has all reports; see `AsyncSeedanceClient.flush_reports`."""
        self._portal.call(lambda sessions: sessions.flush_reports())

    def _start(self, request: Request, *, stream: bool) -> Completion | Stream:
        if stream:
            return self._begin(request)
        return self._portal.call(lambda sessions: sessions.complete(request))

    def _begin(self, request: Request | ResumeRequest) -> Stream:
        return Stream(self._portal, self._portal.call(lambda sessions: sessions.begin(request)))

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

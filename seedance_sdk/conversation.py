"""A conversation turn by turn: what its faces have in common, and the one for trio and asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, overload

from seedance_sdk.completion import Completion
from seedance_sdk.dialogue import Dialogue, WhenLost
from seedance_sdk.face import Reader
from seedance_sdk.options import Message, Options, TextPart
from seedance_sdk.passage import Passage
from seedance_sdk.sessions import Sessions
from seedance_sdk.stream import AsyncStream

__all__ = ["AsyncConversation", "ConversationFace", "make_dialogue"]


def make_dialogue(
    system: str | None, messages: Sequence[Message], when_lost: WhenLost, options: Options
) -> Dialogue:
    """Makes what a conversation's face holds."""
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return Dialogue([*first, *messages], {**options}, when_lost)


class ConversationFace:
    """A conversation, whatever its turns look like."""

    def __init__(self, way: Reader, dialogue: Dialogue) -> None:
        self._way = way
        self._dialogue = dialogue

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.messages)} messages>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far, oldest first, each answer that has ended included.

        Stored, and given to `conversation` in another process, it goes on there.
        """
        return self._way.read(self._dialogue.messages)

    @property
    def resends(self) -> int:
        """How many times the server had the context no more, and all messages were sent again."""
        return self._dialogue.resends


class AsyncConversation(ConversationFace):
    """A conversation: each turn sends only what is new, since the server keeps the exact tokens before it.

        conversation = client.conversation(system="Answer in one sentence.")
        answer = await conversation.say("Why is the sky blue?")
        stream = await conversation.say("And at dusk?", stream=True)

    It goes on after a lost connection, and after a restart of a server that keeps its streams. Where the
    server has the context no more, all messages are sent again as they were, which `resends` counts; with
    ``when_lost="raise"`` the turn fails with a `StreamLost` instead. One turn at a time: an answer that is
    streamed must be read to its end, or left, before the next. A turn that failed or was left was not said.

    Made by `AsyncSeedanceClient.conversation`.
    """

    def __init__(self, passage: Passage, sessions: Sessions, dialogue: Dialogue) -> None:
        super().__init__(passage, dialogue)
        self._passage = passage
        self._sessions = sessions

    @overload
    async def say(
        self,
        content: str | Sequence[TextPart],
        *,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Completion: ...
    @overload
    async def say(
        self, content: str | Sequence[TextPart], *, stream: Literal[True], **options: Unpack[Options]
    ) -> AsyncStream: ...
    @overload
    async def say(
        self, content: str | Sequence[TextPart], *, stream: bool, **options: Unpack[Options]
    ) -> Completion | AsyncStream: ...
    async def say(
        self, content: str | Sequence[TextPart], *, stream: bool = False, **options: Unpack[Options]
    ) -> Completion | AsyncStream:
        """Says something as the user, and gets the answer.

        Args:
            content: What is said.
            stream: As for `AsyncSeedanceClient.chat`.
            **options: The same, for this turn; they come before those of the conversation.

        Raises:
            InvalidRequest: The answer before is still being read.
            SeedanceError: As from `AsyncSeedanceClient.chat`.

        If cancelled, the generation is cancelled on the server.
        """
        begin = self._sessions.begin
        if not stream:
            return await self._passage.call(lambda: self._dialogue.answer(begin, content, {**options}))
        reading = await self._passage.call(
            lambda: self._dialogue.begin(begin, content, {**options}), undo=lambda late: late.abandon()
        )
        return AsyncStream(self._passage, reading)

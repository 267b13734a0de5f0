"""A conversation as its client knows it: what was said, and where the server has it.

Each turn continues the answer before it, so only what is new is sent, and the server puts the exact tokens of
the conversation before it. Where the server has that context no more, the whole of it is sent again as
messages: counted, logged, or refused, as its owner wants. A turn whose answer did not end was not said. Must
not know of sessions.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import trio
from attrs import frozen

from seedance_sdk.completion import Completion
from seedance_sdk.errors import InvalidRequest, SeedanceError, StreamLost
from seedance_sdk.options import Message, TextPart
from seedance_sdk.parameters import Request, chat_request
from seedance_sdk.reading import Reading
from seedance_sdk.received import Received

__all__ = ["Dialogue", "WhenLost"]

_log = logging.getLogger("seedance_sdk")

WhenLost: TypeAlias = Literal["resend", "raise"]
"""What becomes of a conversation whose context the server has no more."""


@frozen
class _Place:
    """Where the server has an answer; what ``continues`` takes."""

    id: int
    session_id: str


@frozen
class _Turn:
    """What was said last, and its answer. Does not hold the reading, which ends where its reader drops it."""

    said: Message
    place: _Place
    received: Received
    reading: weakref.ref[Reading]

    @property
    def is_read(self) -> bool:
        reading = self.reading()
        return reading is not None and reading.unfinished


class Dialogue:
    """One conversation, on trio.

    Args:
        messages: What was said before, oldest first.
        options: For every turn.
        when_lost: What to do where the server has the context no more.

    Attributes:
        resends: How many times the whole conversation was sent again.

    Raises:
        TypeError: An option has an unknown name or a wrong type.
        InvalidRequest: The messages are no list of turns, or ``when_lost`` is no choice.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        options: Mapping[str, object],
        when_lost: WhenLost,
    ) -> None:
        if when_lost not in {"resend", "raise"}:
            raise InvalidRequest(
                f"when_lost must be 'resend' or 'raise', not {when_lost!r}", field="when_lost"
            )
        chat_request(messages, _without_continues(options))
        self.resends = 0
        self._messages = list(messages)
        self._options = dict(options)
        self._when_lost = when_lost
        self._previous: _Place | None = None
        self._turn: _Turn | None = None
        self._asking = False

    def messages(self) -> tuple[Message, ...]:
        """What was said, each answer that has ended included."""
        if self._turn is not None and not self._turn.is_read:
            self._settle()
        return tuple(self._messages)

    async def answer(
        self,
        begin: Callable[[Request], Awaitable[Reading]],
        content: str | Sequence[TextPart],
        options: Mapping[str, object],
    ) -> Completion:
        """Says something and waits for the whole answer; otherwise as `begin`."""
        return await (await self.begin(begin, content, options)).collect()

    async def begin(
        self,
        begin: Callable[[Request], Awaitable[Reading]],
        content: str | Sequence[TextPart],
        options: Mapping[str, object],
    ) -> Reading:
        """Says something and waits until its answer begins.

        Args:
            begin: Sends a request.
            content: What the user says.
            options: For this turn.

        Raises:
            InvalidRequest: The answer before has not ended and is still read.
            StreamLost: The server has the context no more, and the whole of it is not to be sent again.
            SeedanceError: As from ``begin``.
        """
        if self._asking or (self._turn is not None and self._turn.is_read):
            raise InvalidRequest("the answer before has not ended: read it to its end, or close it")
        self._settle()
        self._asking = True
        try:
            said: Message = {"role": "user", "content": content}
            reading = await self._ask(begin, said, {**self._options, **_without_continues(options)})
        finally:
            self._asking = False
        place = _Place(reading.id, reading.session_id)
        self._turn = _Turn(said, place, reading.received, weakref.ref(reading))
        return reading

    async def _ask(
        self,
        begin: Callable[[Request], Awaitable[Reading]],
        said: Message,
        options: dict[str, object],
    ) -> Reading:
        began_at = trio.current_time()
        if self._previous is not None:
            continuing = chat_request([said], {**options, "continues": self._previous})
            try:
                return await begin(continuing)
            except SeedanceError as error:
                if self._when_lost == "raise" or not _says_that_the_context_is_gone(error):
                    raise
                _log.warning("a conversation is sent again from its beginning: %s", error)
                self.resends += 1
                self._previous = None
                if continuing.deadline_s is not None:
                    left_s = continuing.deadline_s - (trio.current_time() - began_at)
                    options = {**options, "deadline": max(left_s, 0.001)}
        return await begin(chat_request([*self._messages, said], options))

    def _settle(self) -> None:
        """Takes the last turn for said, if its answer has ended, or for never said."""
        turn, self._turn = self._turn, None
        if turn is not None and turn.received.whole:
            self._messages += [turn.said, {"role": "assistant", "content": turn.received.text}]
            self._previous = turn.place


def _without_continues(options: Mapping[str, object]) -> Mapping[str, object]:
    if "continues" in options:
        raise TypeError("a conversation knows itself what it continues")
    return options


def _says_that_the_context_is_gone(error: SeedanceError) -> bool:
    return isinstance(error, StreamLost) or (isinstance(error, InvalidRequest) and error.field == "continues")

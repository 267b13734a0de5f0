"""Answers that are being made or were made: found, read from where a client has them, and sent as it wants.

The first reading of an answer and every later one are the same: what differs is where it begins. When a
client leaves before the end its streams go on as a WebSocket's do; one that can't ask for them again, having
neither made a key nor been told the name, leaves nothing behind.

It must not know how requests are made or what they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
import trio
from attrs import define, field
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from seedance_server.errors import RequestRefused, SessionLost
from seedance_server.found_stream import FoundStream, ResumeRefused
from seedance_server.gate import Pass
from seedance_server.house import House, Service
from seedance_server.http.event_stream import EventStream
from seedance_server.http.holds import AnswerGone, Hold, Holds
from seedance_server.http.reading import Reading
from seedance_server.http.refusal import Refusal, http_refusal, refusal_of_request
from seedance_server.http.shapes import Shape
from seedance_server.journal.errors import JournalError, SessionNotFound, StreamNotFound, StreamTruncated
from seedance_server.refusals import RETRY_SOON_MS
from seedance_server.request_watch import ResumeOutcome
from seedance_wire.messages import Error, ErrorCode, Resume, ResumeFailure

__all__ = ["Answers", "Readings", "refusing"]

_log = structlog.get_logger(__name__)

_RESUME_FAILURES = {
    ResumeFailure.NOT_FOUND: (404, "there is no such answer", "not_found"),
    ResumeFailure.EXPIRED: (410, "nothing of this answer is kept any more", "expired"),
    ResumeFailure.TRUNCATED: (410, "what follows there isn't kept any more", "truncated"),
    ResumeFailure.CURSOR_AHEAD: (400, "the answer hasn't come so far", "invalid_cursor"),
    ResumeFailure.FINGERPRINT_MISMATCH: (
        410,
        "another model is served now: the answer can't go on",
        "fingerprint_mismatch",
    ),
}
_MANY_LOGPROBS = 128
"""Tokens with log probabilities that are written down at once on the event loop: with 20 alternatives each
under 20 ms, measured on a busy machine."""
_TRAILER = 2
"""What comes behind the last frame: the usage and the end."""


@contextmanager
def refusing() -> Iterator[None]:
    """Makes an HTTP answer of whatever keeps a request from being answered.

    Raises:
        Refusal: Something did.
    """
    try:
        yield
    except RequestRefused as refused:
        raise refusal_of_request(refused) from refused
    except ResumeRefused as refused:
        raise _resume_refusal(refused.code) from refused
    except (SessionNotFound, StreamNotFound) as error:
        raise _resume_refusal(ResumeFailure.NOT_FOUND) from error
    except (AnswerGone, StreamTruncated) as error:
        raise _resume_refusal(ResumeFailure.EXPIRED) from error
    except (SessionLost, JournalError) as error:
        raise _journal_refusal() from error


def _resume_refusal(failure: ResumeFailure) -> Refusal:
    status, message, code = _RESUME_FAILURES[failure]
    return Refusal(status=status, message=message, code=code)


def _failure(error: Error, *, may_repeat: bool) -> Refusal:
    """Why a choice failed; under a key the same request would get the same answer again."""
    retry_after_ms = error.retry_after_ms or RETRY_SOON_MS if error.retryable and may_repeat else None
    return http_refusal(error.code, error.message, retry_after_ms=retry_after_ms)


def _journal_refusal() -> Refusal:
    return http_refusal(
        ErrorCode.OVERLOADED, "the journal can't serve just now", retry_after_ms=RETRY_SOON_MS
    )


@define(eq=False)
class Readings:
    """The choices of one answer that are being read for one client.

    Attributes:
        listed: In order.
        trailer: How much of what comes behind the last frame the client has.
        can_return: Whether the client can ask for them again.
        gathers: Whether they are wanted whole.
    """

    can_return: bool
    gathers: bool = False
    listed: list[Reading] = field(factory=list)
    trailer: int = 0

    def close(self) -> None:
        """Reads no more."""
        for reading in self.listed:
            reading.close(cancel=not self.can_return)


class Answers:
    """All of them.

    Args:
        house: Where they are made.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._holds: Holds | None = None

    @property
    def service(self) -> Service:
        """What is behind the door; nobody is let in before it is there."""
        assert self._house.service is not None  # noqa: S101
        return self._house.service

    @property
    def holds(self) -> Holds:
        """The sessions that answers are in."""
        if self._holds is None:
            self._holds = Holds(self.service.registry)
        return self._holds

    def check_gone(self, positions: Sequence[int], *, is_known: bool) -> None:
        """Never begins an answer anew for a client that has a part of it.

        Raises:
            Refusal: Nothing is kept of what it has.
        """
        if any(positions) and not is_known:
            raise _resume_refusal(ResumeFailure.EXPIRED)

    async def find(self, hold: Hold, stream_id: int, after_id: int, readings: Readings) -> None:
        """Adds a choice that was made before, to be read from behind a frame on.

        Raises:
            ResumeRefused: It can't be.
            SessionLost, JournalError: The journal can't serve.
        """
        index = len(readings.listed)
        try:
            found = await self._look(hold, stream_id, after_id)
        except ResumeRefused as refused:
            beyond = after_id - refused.last_id
            if refused.code is not ResumeFailure.CURSOR_AHEAD or index or not 0 < beyond <= _TRAILER:
                self.service.requests.note_resume(ResumeOutcome.REJECTED)
                raise
            readings.trailer, after_id = beyond, refused.last_id
            found = await self._look(hold, stream_id, after_id)
        # No checkpoint from here, or the stream could leave memory before it has this reader.
        reading = Reading(index, found.source, found.stream, after_id, gathers=readings.gathers)
        readings.listed.append(reading)
        outcome = ResumeOutcome.LIVE if found.is_live else ResumeOutcome.ENDED
        self.service.requests.note_resume(outcome, found.last_id - after_id)
        has_ended = found.stream is None or found.stream.tail.is_ended
        if has_ended and after_id == found.last_id:
            await reading.read_end()
        elif readings.trailer and not index:
            raise ResumeRefused(ResumeFailure.CURSOR_AHEAD)

    async def _look(self, hold: Hold, stream_id: int, after_id: int) -> FoundStream:
        return await self.service.requests.find(
            hold.session, Resume(stream_id=stream_id, last_processed_id=after_id)
        )

    async def send_events(
        self, shape: Shape, hold: Hold, readings: Readings, visitor: Pass, send: Send
    ) -> None:
        """Sends an answer as events; breaks off, for the client to come back, where it can't go on."""
        account = self._house.gate.accounts.of(visitor.tenant)
        name = shape.answer.name
        events = EventStream(shape, readings.listed, readings.trailer, account=account, send=send)

        def note_told() -> None:
            readings.can_return = True

        try:
            with hold.in_use():
                await events.run([(b"x-request-id", name.encode())], on_begun=note_told)
        except* (SessionLost, JournalError, trio.BrokenResourceError) as group:
            _log.info("answer broken off", answer=name, reason=repr(group.exceptions[0]))

    async def whole(self, shape: Shape, hold: Hold, readings: Readings, visitor: Pass) -> Response:
        """An answer in one piece, once all of it is there.

        Raises:
            Refusal: A choice failed, or can't be read.
        """
        try:
            with hold.in_use():
                async with trio.open_nursery() as nursery:
                    for reading in readings.listed:
                        nursery.start_soon(reading.read_out)
        except* (SessionLost, JournalError) as group:
            raise _journal_refusal() from group
        choices = [reading.choice for reading in readings.listed]
        for choice in choices:
            if choice.error is not None:
                raise _failure(choice.error, may_repeat=not readings.can_return)

        def render() -> Response:
            return JSONResponse(shape.whole(choices), headers={"x-request-id": shape.answer.name})

        if sum(len(choice.logprobs) for choice in choices) > _MANY_LOGPROBS:
            response = await trio.to_thread.run_sync(render)
        else:
            response = render()
        self._house.gate.accounts.of(visitor.tenant).charge_bytes(len(response.body))
        return response

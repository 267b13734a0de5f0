"""``/v1/streams/{id}``: an answer that was begun, read on from any event or cancelled.

It must not know how answers are made.
"""

from __future__ import annotations

from itertools import pairwise

from attrs import frozen
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from seedance_server.gate import Pass
from seedance_server.http.answer_id import AnswerId
from seedance_server.http.answers import Answers, Readings, refusing
from seedance_server.http.cursor import parse_cursor
from seedance_server.http.shapes import Shape
from seedance_server.journal.errors import StreamExpired, StreamNotFound
from seedance_server.journal.records import StreamState
from seedance_wire.stored_form import load_submit

__all__ = ["answer_routes"]

_PATH = "/v1/streams/{name}"


def answer_routes(answers: Answers) -> list[BaseRoute]:
    """Reading and cancelling."""

    async def cancel(request: Request) -> Response:
        return await _cancel(answers, request)

    return [
        Route(_PATH, _Replay(answers), methods=["GET"]),
        Route(_PATH, cancel, methods=["DELETE"]),
    ]


@frozen
class _Known:
    """An answer that this tenant has."""

    id: AnswerId
    created_ms: int


async def _known(answers: Answers, request: Request) -> _Known:
    """Looks for the answer that a path names; others' aren't there.

    Raises:
        StreamNotFound: It isn't there.
        StreamExpired: It was.
        JournalError: The journal can't serve.
    """
    visitor: Pass = request.state.visitor
    answer = AnswerId.parse(request.path_params["name"])
    if answer is None:
        raise StreamNotFound(1)
    try:
        record = await answers.service.journal.find_stream(answer.name, 1)
    except StreamExpired as error:  # so long ago that nobody knows any more whose it was
        raise StreamNotFound(1) from error
    if record.tenant != visitor.tenant:
        raise StreamNotFound(1)
    if record.state is StreamState.EXPIRED:
        raise StreamExpired(1, record.first_available_id, record.last_id)
    return _Known(answer, record.created_ms)


class _Replay:
    """Reading, as an ASGI application: the answer lasts for as long as it is sent."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        visitor: Pass = request.state.visitor
        after = request.headers.get("last-event-id") or request.query_params.get("starting_after")
        with_usage = request.query_params.get("include_usage", "").lower() in {"1", "true"}
        readings = Readings(can_return=True)
        with refusing():
            known = await _known(self._answers, request)
            if request.method == "HEAD":  # it is there; all of it would be read for nothing
                await Response(headers={"x-request-id": known.id.name})(scope, receive, send)
                return
            async with self._answers.holds.held(visitor.tenant, known.id, is_new=False) as hold:
                try:
                    positions = parse_cursor(after, hold.streams)
                    for index, after_id in enumerate(positions):
                        await self._answers.find(hold, index + 1, after_id, readings)
                    shape = await self._shape(known, hold.streams, with_usage=with_usage)
                    await self._answers.send_events(shape, hold, readings, visitor, send)
                finally:
                    readings.close()

    async def _shape(self, known: _Known, choices: int, *, with_usage: bool) -> Shape:
        model = self._answers.service.admission.model
        return Shape(
            answer=known.id,
            created_s=known.created_ms // 1000,
            model=model.name,
            fingerprint=model.fingerprint,
            prompts=await self._prompts(known.id, choices) if with_usage and choices > 1 else 1,
            with_usage=with_usage,
        )

    async def _prompts(self, answer: AnswerId, choices: int) -> int:
        """How many prompts an answer's choices are of."""
        inputs = []
        for number in range(1, choices + 1):
            stored = await self._answers.service.journal.load_stream(answer.name, number)
            submit = load_submit(stored.request)
            inputs.append((submit.messages, submit.prompt, submit.token_ids))
        return 1 + sum(before != after for before, after in pairwise(inputs))


async def _cancel(answers: Answers, request: Request) -> Response:
    """Ends every choice that hasn't; returns once that is durable."""
    visitor: Pass = request.state.visitor
    with refusing():
        known = await _known(answers, request)
        cancelled = False
        async with answers.holds.held(visitor.tenant, known.id, is_new=False) as hold:
            for number in range(1, hold.streams + 1):
                stream = await answers.service.requests.find_to_cancel(hold.session, number)
                if stream is not None:
                    cancelled = True
                    stream.cancel()
                    await stream.over.wait()
    return JSONResponse({"id": known.id.name, "object": "stream", "cancelled": cancelled})

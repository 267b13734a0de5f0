"""``POST /v1/chat/completions`` and ``/v1/completions``: OpenAI's requests, answered whole or as events.

With an ``Idempotency-Key`` a request may be sent again: it is answered from what there is, from the event on
that ``Last-Event-ID`` names, and nothing is started twice.

It must not know how an answer is kept or found.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from seedance_server.gate import Pass
from seedance_server.house import House
from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.answers import Answers, Readings, refusing
from seedance_server.http.asked import Asked, parse_asked
from seedance_server.http.cursor import parse_cursor
from seedance_server.http.holds import Hold
from seedance_server.http.intake import take
from seedance_server.http.marks import Marks, marks_of
from seedance_server.http.reading import Reading
from seedance_server.http.refusal import Refusal
from seedance_server.http.shapes import Shape

__all__ = ["completion_routes"]

_MAX_KEY_CHARS = 255


def completion_routes(house: House, answers: Answers) -> list[BaseRoute]:
    """Both of them."""
    return [
        Route("/v1/chat/completions", _Completions(house, answers, Kind.CHAT), methods=["POST"]),
        Route("/v1/completions", _Completions(house, answers, Kind.TEXT), methods=["POST"]),
    ]


class _Completions:
    """One of them, as an ASGI application: its answer lasts for as long as it is sent."""

    def __init__(self, house: House, answers: Answers, kind: Kind) -> None:
        self._house = house
        self._answers = answers
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        visitor: Pass = request.state.visitor
        key = _key_of(request)
        answer = AnswerId.of(self._kind, visitor.tenant, key)
        body = _parse_json(await request.body())
        asked = parse_asked(answer, body, max_choices=self._house.config.max_streams)
        positions = parse_cursor(request.headers.get("last-event-id"), len(asked.submits))
        if any(positions) and key is None:
            raise Refusal(
                status=400, message="Last-Event-ID needs the Idempotency-Key of the request", param=None
            )
        readings = Readings(can_return=key is not None, gathers=not asked.stream)
        with refusing():
            async with self._answers.holds.held(visitor.tenant, answer, is_new=True) as hold:
                try:
                    shape = await self._begin(hold, asked, marks_of(request), positions, readings)
                    if asked.stream:
                        await self._answers.send_events(shape, hold, readings, visitor, send)
                    else:
                        response = await self._answers.whole(shape, hold, readings, visitor)
                        await response(scope, receive, send)
                finally:
                    readings.close()

    async def _begin(
        self, hold: Hold, asked: Asked, marks: Marks, positions: list[int], readings: Readings
    ) -> Shape:
        """Makes streams of the choices, or finds those that there are."""
        service = self._answers.service
        created_ms = 0
        hold.session.is_canary = marks.is_canary
        for submit, after_id in zip(asked.submits, positions, strict=True):
            if any(positions):
                is_known = await service.requests.knows(hold.session, submit)
                self._answers.check_gone(positions, is_known=is_known)
            taken = await take(service, hold.session, evolve(submit, traceparent=marks.traceparent))
            # No checkpoint before it has its reader.
            created_ms = created_ms or taken.record.created_ms
            stream_id = taken.record.stream_id
            hold.streams = max(hold.streams, stream_id)
            if taken.stream is None:
                await self._answers.find(hold, stream_id, after_id, readings)
            else:
                source = service.requests.source(hold.session, taken.stream)
                index = len(readings.listed)
                readings.listed.append(Reading(index, source, taken.stream, 0, gathers=readings.gathers))
        model = service.admission.model
        return Shape(
            answer=asked.answer,
            created_s=created_ms // 1000,
            model=model.name,
            fingerprint=model.fingerprint,
            prompts=asked.prompts,
            with_usage=asked.include_usage,
        )


def _key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= _MAX_KEY_CHARS:
        raise Refusal(
            status=400, message=f"Idempotency-Key must have 1 to {_MAX_KEY_CHARS} characters", param=None
        )
    return key


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(status=400, message="the body isn't JSON as RFC 8259 has it") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(name)

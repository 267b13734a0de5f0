"""Whether the server lives, and whether it takes new work: for whoever restarts it or balances the load.

Alive is who answers; ready is who is in no trouble. Neither asks for a key.

It must not know connections.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.http.refusal import ERROR_HEADER
from seedance_wire.messages import ErrorCode

__all__ = ["health_routes"]


def health_routes(house: House) -> list[BaseRoute]:
    """``/healthz`` and ``/readyz``."""

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        trouble = house.trouble()
        if trouble is None:
            return PlainTextResponse("ok\n")
        word = ErrorCode.DRAINING if house.is_draining else ErrorCode.OVERLOADED
        return PlainTextResponse(f"{trouble}\n", 503, headers={"Retry-After": "1", ERROR_HEADER: word.value})

    return [Route("/healthz", alive), Route("/readyz", ready)]

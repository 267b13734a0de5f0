"""Whether the server lives, and whether it takes new work: for whoever restarts it or balances the load.

Each answer names every reason, as lines of text, or as JSON for who accepts that. Neither asks for a key.

It must not know connections.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.http.refusal import ERROR_HEADER
from seedance_server.readiness import Readiness

__all__ = ["health_routes"]


def health_routes(house: House) -> list[BaseRoute]:
    """``/healthz`` and ``/readyz``."""

    def answer(request: Request, *, is_good: bool, readiness: Readiness) -> Response:
        headers = {"Cache-Control": "no-store"}
        if not is_good:
            headers |= {"Retry-After": "1", ERROR_HEADER: house.refusal_code.value}
        status = 200 if is_good else 503
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(readiness.as_json(), status, headers)
        return PlainTextResponse(readiness.lines("ok" if is_good else "no"), status, headers)

    async def alive(request: Request) -> Response:
        readiness = house.readiness()
        return answer(request, is_good=readiness.is_alive, readiness=readiness)

    async def ready(request: Request) -> Response:
        readiness = house.readiness()
        return answer(request, is_good=readiness.is_ready, readiness=readiness)

    return [Route("/healthz", alive), Route("/readyz", ready)]

"""``/metrics``, for Prometheus.

Open to everybody unless the operator chose a key for it: a scraper on a network that is trusted has none, one
elsewhere has a file with a token. A tenant's key doesn't open it, since it shows what others do.

It must not know what is measured.
"""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.http.refusal import refusal_of_answer
from seedance_server.metrics.exposition import CONTENT_TYPE
from seedance_server.upgrade import HttpAnswer

__all__ = ["metrics_routes"]

_WRONG = HttpAnswer(
    401, "send the key of --metrics-key as Authorization: Bearer", (("WWW-Authenticate", "Bearer"),)
)


def metrics_routes(house: House) -> list[BaseRoute]:
    """``/metrics``."""

    async def metrics(request: Request) -> Response:
        key = house.config.metrics_key
        if key is not None and not _is_shown(request.headers.get("authorization", ""), key):
            house.note_refused(_WRONG)
            return refusal_of_answer(_WRONG).response()
        headers = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"}
        return Response(await house.metrics.expose(), headers=headers)

    return [Route("/metrics", metrics)]


def _is_shown(authorization: str, key: str) -> bool:
    scheme, _, shown = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), key.encode())

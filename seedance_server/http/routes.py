"""Every path that HTTP answers, in one list.

To add some: write a module with a function that takes the `House` and returns Starlette routes, and name it
below. Its endpoints run on trio. A path under ``/v1/`` is only reached with a key, and whose that is says
``request.state.visitor``, a `Pass`; any other is open to everybody. Routes answer before the model is loaded:
until then ``house.service`` is None.

It must not know how requests come in.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.http.answer_routes import answer_routes
from seedance_server.http.answers import Answers
from seedance_server.http.completions import completion_routes
from seedance_server.http.health import health_routes
from seedance_server.http.metrics import metrics_routes
from seedance_server.http.models import model_routes
from seedance_server.http.refusal import Refusal
from seedance_server.http.tickets import ticket_routes
from seedance_server.playground.page import page_routes
from seedance_server.upgrade import CHAT_PATH

__all__ = ["all_routes"]


def all_routes(house: House) -> list[BaseRoute]:
    """The routes, in the order in which they are tried."""
    answers = Answers(house)
    return [
        *health_routes(house),
        *metrics_routes(house),
        *model_routes(house),
        *completion_routes(house, answers),
        *answer_routes(answers),
        *ticket_routes(house),
        *(page_routes() if house.config.playground == "on" else ()),
        Route(CHAT_PATH, _websocket_only, methods=["GET", "HEAD", "POST"]),
    ]


async def _websocket_only(_: Request) -> Response:
    """Without an upgrade, on a connection that speaks HTTP already: else the door sees to this path."""
    return Refusal(
        status=426,
        message="this is a WebSocket: upgrade",
        code="upgrade_required",
        headers={"Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
    ).response()

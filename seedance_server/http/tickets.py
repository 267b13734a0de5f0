"""``POST /v1/tickets``: a ticket for one WebSocket, for whoever may ask, in the next half minute.

For browsers, which can't send a key with a WebSocket: the playground fetches its own, another page gets one
from its own server, which has the key. The ticket is offered as the subprotocol ``seedance.ticket.TICKET``.

It must not know keys or how a ticket is kept.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.tickets import LIFETIME_S

__all__ = ["TICKETS_PATH", "ticket_routes"]

TICKETS_PATH = "/v1/tickets"


def ticket_routes(house: House) -> list[BaseRoute]:
    """The one route; a server that wants no key gives tickets too, so that a page need not know."""

    async def issue(request: Request) -> Response:
        ticket = house.gate.issue_ticket(request.state.visitor)
        body = {"ticket": ticket, "expires_in_ms": round(LIFETIME_S * 1e3)}
        # The next connection is the WebSocket; one kept open beside it would take a second place.
        return JSONResponse(body, headers={"Connection": "close"})

    return [Route(TICKETS_PATH, issue, methods=["POST"])]

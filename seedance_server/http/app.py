"""The ASGI application: the routes, and one shape for every error.

It must not know connections: who asks has been let in before.
"""

from __future__ import annotations

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from seedance_server.house import House
from seedance_server.http.refusal import Refusal, http_refusal, refusal_of_answer
from seedance_server.http.routes import all_routes
from seedance_server.upgrade import HttpAnswer
from seedance_wire.messages import ErrorCode

__all__ = ["build_app"]

_log = structlog.get_logger(__name__)


def build_app(house: House) -> ASGIApp:
    """Builds the application; it answers from the first moment on, also before there is a model."""
    middleware = []
    if house.config.allow_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=house.config.allow_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
        )
    app = Starlette(
        routes=all_routes(house),
        middleware=middleware,
        exception_handlers={
            Refusal: _refuse,
            HTTPException: _answer_status,
            Exception: _answer_bug,
        },
    )
    app.router.redirect_slashes = False  # a path is there or it isn't
    return app


async def _refuse(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)  # noqa: S101 - registered for it
    return refusal.response()


async def _answer_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    words = {
        404: f"nothing here: {request.method} {request.url.path}",
        405: f"not with {request.method}: {request.url.path}",
    }
    answer = HttpAnswer(
        error.status_code,
        words.get(error.status_code, error.detail),
        tuple((error.headers or {}).items()),
    )
    return refusal_of_answer(answer).response()


async def _answer_bug(_request: Request, _error: Exception) -> Response:
    return http_refusal(ErrorCode.INTERNAL, "a bug in the server, see its log").response()

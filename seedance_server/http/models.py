"""``GET /v1/models``: the one model that is served, as OpenAI lists them.

It must not know the engine.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from seedance_server.house import House
from seedance_server.http.refusal import http_refusal
from seedance_wire.messages import ErrorCode

__all__ = ["model_routes"]


def model_routes(house: House) -> list[BaseRoute]:
    """The list, and one of it."""
    created_s = int(time.time())

    def served() -> dict[str, Any]:
        assert house.service is not None  # noqa: S101 - nobody is let in before it is there
        model = house.service.admission.model
        return {
            "id": model.name,
            "object": "model",
            "created": created_s,
            "owned_by": "seedance",
            "max_model_len": model.context_tokens,
        }

    async def listed(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [served()]})

    async def one(request: Request) -> Response:
        model = served()
        if request.path_params["name"] == model["id"]:
            return JSONResponse(model)
        raise http_refusal(ErrorCode.MODEL_NOT_FOUND, f"this server serves {model['id']}", param="model")

    return [Route("/v1/models", listed), Route("/v1/models/{name:path}", one)]

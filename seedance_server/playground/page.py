"""Serves the playground: the page at ``/`` and its files under ``/playground/``, and nothing beside them.

The files are read once, and are what lies in this package: no path of a request ever touches the disk. The
page may load its own scripts and styles and talk to its own server, nothing else: its policy has no exception
for anything inline, and scripts can't write HTML.

It must not know models, keys or streams: all of that the page does over the wire, as any client would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from attrs import frozen
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

__all__ = ["POLICY", "page_routes"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy of the page."""

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304 unless it has changed
}
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"


@frozen
class _File:
    """One file of the page, ready to be sent."""

    body: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """The file, or that the browser has it already."""
        headers = {**_HEADERS, "ETag": self.tag}
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")
        ]
        if self.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def _load() -> dict[str, _File]:
    """Every file of the page by its name."""
    found = {}
    for entry in files(__package__).iterdir():
        media_type = _MEDIA_TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            found[entry.name] = _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def page_routes() -> list[BaseRoute]:
    """``/`` and ``/playground/…``; needs no key, since nothing in it is secret."""
    loaded = _load()
    index = loaded.pop(_INDEX)

    async def page(request: Request) -> Response:
        return index.answer(request)

    async def part(request: Request) -> Response:
        file = loaded.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return file.answer(request)

    return [Route("/", page), Route("/playground/{name}", part)]

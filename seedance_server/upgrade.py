"""Whether a request may become a WebSocket, decided before anything is upgraded. Pure.

Each refusal is an HTTP status that says why, while there is still HTTP to say it in. What passes is reduced
to the one header value that the handshake needs, and `canonical_head` writes a fresh request from it: the
WebSocket library never parses a header that a client wrote.

It must not know streams, peers or time.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import urlsplit

from attrs import frozen

from seedance_server.errors import BadRequestHead
from seedance_server.request_head import RequestHead
from seedance_server.setting import is_loopback
from seedance_wire.codec import SUBPROTOCOLS, choose_subprotocol

__all__ = [
    "CHAT_PATH",
    "ERROR_HEADER",
    "HttpAnswer",
    "Upgrade",
    "asks_for_websocket",
    "canonical_head",
    "check_upgrade",
    "is_allowed_origin",
    "is_canary",
    "ticket_of",
]

CHAT_PATH = "/v1/chat"
"""Where WebSockets are; every other path is HTTP's."""
ERROR_HEADER = "Seedance-Error"
"""Header of an answer that refuses new work; its value is that of an `ErrorCode`."""
_TICKET_PREFIX = "seedance.ticket."
_STATUS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_DEFAULT_PORTS = {"http": 80, "https": 443}


@frozen
class HttpAnswer:
    """A whole answer to an HTTP request; the connection closes after it.

    Attributes:
        status: One of the statuses that this server uses.
        body: A line of text.
        headers: Beyond those that every answer has.
    """

    status: int
    body: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """One word of few for it: the protocol's where the answer says one, else that of its status."""
        word = dict(self.headers).get(ERROR_HEADER)
        return word or _STATUS.get(self.status, "Refused").lower().replace(" ", "_")

    def encode(self, *, with_body: bool = True) -> bytes:
        """The bytes to send; an answer to HEAD has no body."""
        body = f"{self.body}\n".encode()
        lines = [
            f"HTTP/1.1 {self.status} {_STATUS.get(self.status, 'Refused')}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (body if with_body else b"")


@frozen
class Upgrade:
    """What a good request asks for.

    Attributes:
        key: Its ``Sec-WebSocket-Key``, 16 bytes in base64.
        subprotocol: The one chosen.
        is_canary: Whether its requests are marked, to be looked at apart.
    """

    key: str
    subprotocol: str
    is_canary: bool = False


def asks_for_websocket(head: RequestHead) -> bool:
    """Whether a request is one for a WebSocket, good or bad; `check_upgrade` says which."""
    return head.path == CHAT_PATH and _offers_websocket(head)


def _offers_websocket(head: RequestHead) -> bool:
    return "websocket" in [token.lower() for token in head.tokens("upgrade")]


def check_upgrade(  # noqa: PLR0911 - one refusal a rule, in order
    head: RequestHead, *, wants_key: bool, allow_origins: Sequence[str]
) -> Upgrade | HttpAnswer:
    """Decides on a request for the chat path, but for whose it is: the gate looks at keys.

    Args:
        head: The request.
        wants_key: Whether nobody comes in without a key.
        allow_origins: Origins listed by the operator.

    Raises:
        BadRequestHead: A header that must be unique isn't.
    """
    if head.method != "GET":
        return HttpAnswer(405, "WebSocket requests are GET", (("Allow", "GET"),))
    if not _offers_websocket(head):
        return HttpAnswer(
            426, "this is a WebSocket: upgrade", (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"))
        )
    if head.http_version != "1.1" or "upgrade" not in [token.lower() for token in head.tokens("connection")]:
        return HttpAnswer(400, "an upgrade needs HTTP/1.1 and Connection: Upgrade")
    if head.get("sec-websocket-version") != "13":
        return HttpAnswer(
            426,
            "WebSocket version 13 is spoken here",
            (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")),
        )
    key = head.get("sec-websocket-key")
    if key is None or not _is_nonce(key):
        return HttpAnswer(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    origin = head.get("origin")
    if origin is not None and not is_allowed_origin(
        origin, host=head.get("host") or "", allow_origins=allow_origins, any_name=wants_key
    ):
        return HttpAnswer(403, "this origin may not connect; see --allow-origin")
    subprotocol = choose_subprotocol(head.tokens("sec-websocket-protocol"))
    if subprotocol is None:
        known = ", ".join(SUBPROTOCOLS)
        return HttpAnswer(
            400, f"offer one of these subprotocols: {known}", (("Sec-WebSocket-Protocol", known),)
        )
    return Upgrade(key, subprotocol, is_canary=is_canary(head.get("x-canary")))


def ticket_of(head: RequestHead) -> str | None:
    """The ticket that a browser offers among the subprotocols, as it can't send a header of its own.

    Raises:
        BadRequestHead: There are several.
    """
    offered = head.tokens("sec-websocket-protocol")
    tickets = [one.removeprefix(_TICKET_PREFIX) for one in offered if one.startswith(_TICKET_PREFIX)]
    if len(tickets) > 1:
        raise BadRequestHead(400, "more than one ticket")
    return tickets[0] if tickets else None


def is_canary(header: str | None) -> bool:
    """Whether an ``X-Canary`` header marks what it comes with (S37)."""
    return header is not None and header.strip().lower() == "true"


def canonical_head(upgrade: Upgrade) -> bytes:
    """The same request in our own words, for the WebSocket library; it offers no extension."""
    return (
        "GET / HTTP/1.1\r\nHost: seedance\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {upgrade.key}\r\n"
        f"Sec-WebSocket-Protocol: {upgrade.subprotocol}\r\n\r\n"
    ).encode("ascii")


def is_allowed_origin(origin: str, *, host: str, allow_origins: Sequence[str], any_name: bool) -> bool:
    """Whether a page of ``origin`` may connect: it is listed, or it comes from this very server.

    Args:
        origin: The header as the browser sent it.
        host: The Host header.
        allow_origins: Origins listed by the operator.
        any_name: Trust that our own page may have any name. Without an API key only addresses and
            ``localhost`` count: a page of a name that its owner points here (DNS rebinding) would else look
            like ours.
    """
    if origin in allow_origins:
        return True
    try:
        page = urlsplit(origin)
        ours = urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        if (
            default is None
            or origin != f"{page.scheme}://{page.netloc}"
            or "@" in page.netloc
            or not page.hostname
        ):
            return False
        same = page.hostname == ours.hostname and (page.port or default) == (ours.port or default)
        return same and (any_name or _is_local_name(page.hostname))
    except ValueError:  # a bad port or a bad bracket
        return False


def _is_local_name(hostname: str) -> bool:
    return is_loopback(hostname)


def _is_nonce(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False

"""One request and its answer, between h11 and an ASGI application.

The body is handed on as it comes, no more of it than may be. The answer's head leaves together with the first
of its body. An answer to HEAD is the one to GET without the body.

It must not know connections before or after this request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import h11
import trio
from starlette.types import Message, Scope

from seedance_server.guard import GuardedStream
from seedance_server.http.refusal import Refusal
from seedance_server.request_head import RequestHead

__all__ = ["Exchange", "head_scope"]

_BODY_TIMEOUT_S = 30.0
"""For a whole body: a quarter of a megabyte from a phone at 100 kbit/s takes 20 s."""
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_UNLESS_SAID = {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}
"""Headers of an answer that doesn't say otherwise."""


def head_scope(head: RequestHead, address: str, state: dict[str, Any]) -> Scope:
    """The ASGI scope of a request.

    Args:
        head: Its head.
        address: Of the peer.
        state: What the application finds in ``request.state``.
    """
    path, _, query = head.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": head.http_version,
        "method": head.method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(name.encode("ascii"), value.encode("ascii")) for name, value in head.headers],
        "client": (address, 0),
        "server": None,
        "state": state,
    }


class Exchange:
    """The two ends that an application gets.

    Args:
        head: The request's head.
        parser: The connection's, which has parsed it.
        stream: Where the answer goes.
        next_event: Waits for what comes next of the body.
        gone: Set once the client has left.
        max_body_bytes: Size of a request body.

    Attributes:
        close_after: Set it before the answer begins to say that none will follow.
        is_complete: Whether the whole answer has been sent.
        status: The answer's status; 0 until it begins.
    """

    def __init__(
        self,
        head: RequestHead,
        parser: h11.Connection,
        stream: GuardedStream,
        *,
        next_event: Callable[[], Awaitable[h11.Event | type[h11.PAUSED]]],
        gone: trio.Event,
        max_body_bytes: int,
    ) -> None:
        self.close_after = False
        self.is_complete = False
        self.status = 0
        self._head = head
        self._parser = parser
        self._stream = stream
        self._next_event = next_event
        self._gone = gone
        self._body_room = max_body_bytes
        self._body_until_s = float("inf")
        self._response: h11.Response | None = None

    async def receive(self) -> Message:
        """A piece of the body, or that the client has left.

        Raises:
            Refusal: The body is too large, too slow or broken.
        """
        if self._parser.their_state is not h11.SEND_BODY:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        if self._body_until_s == float("inf"):
            self._body_until_s = trio.current_time() + _BODY_TIMEOUT_S
            await self._begin_body()
        try:
            with trio.fail_at(self._body_until_s):
                event = await self._next_event()
        except trio.TooSlowError:
            raise Refusal(status=408, message="the request's body didn't arrive in time") from None
        except h11.RemoteProtocolError as error:
            raise Refusal(status=400, message="the request's body breaks off or is no HTTP/1.1") from error
        if not isinstance(event, h11.Data):
            return {"type": "http.request", "body": b"", "more_body": False}
        self._body_room -= len(event.data)
        if self._body_room < 0:
            raise self._too_large()
        return {"type": "http.request", "body": bytes(event.data), "more_body": True}

    async def _begin_body(self) -> None:
        length = self._head.values("content-length")
        if length and int(length[0]) > self._body_room:
            raise self._too_large()
        if self._parser.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._stream.send_all(self._parser.send(go_on) or b"")

    def _too_large(self) -> Refusal:
        return Refusal(
            status=413, message="the request's body is too large; see --max-message", code="request_too_large"
        )

    async def send(self, message: Message) -> None:
        """Sends the answer, a piece at a time; waits where the client doesn't read.

        Raises:
            trio.BrokenResourceError: The client is gone, or didn't read for too long.
        """
        if message["type"] == "http.response.start":
            self._response = self._begin(message)
            return
        events: list[h11.Event] = []
        if self._response is not None:
            events.append(self._response)
            self._response = None
        if (data := message.get("body", b"")) and self._head.method != "HEAD":
            events.append(h11.Data(data=data))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._parser.send(event) or b"" for event in events))
        self.is_complete = isinstance(events[-1], h11.EndOfMessage)

    def _begin(self, message: Message) -> h11.Response:
        self.status = message["status"]
        headers = list(message.get("headers", ()))
        given = {name.lower() for name, _ in headers}
        headers += [(name, value) for name, value in _UNLESS_SAID.items() if name not in given]
        if b"date" not in given:
            headers.append((b"date", formatdate(usegmt=True).encode()))
        if self.close_after:
            headers.append((b"connection", b"close"))
        return h11.Response(status_code=self.status, headers=headers, reason=_REASONS.get(self.status, b""))

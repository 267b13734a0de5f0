"""The connections that speak HTTP, and who may ask for what on them.

Everything under ``/v1/`` needs a key, where keys are needed; nothing else does. A request counts as one of
its tenant's connections while it is answered, and an open connection as one of all; so the bounds of
WebSockets are those of HTTP too. A page of a foreign origin is turned away as at the other door.

It must not know what is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import trio
from starlette.types import ASGIApp

from seedance_server.errors import BadRequestHead
from seedance_server.gate import Pass
from seedance_server.guard import GuardedStream
from seedance_server.house import House
from seedance_server.http.connection import HttpConnection, HttpLimits
from seedance_server.http.refusal import refusal_of_answer
from seedance_server.lobby import Visit
from seedance_server.request_head import RequestHead
from seedance_server.upgrade import HttpAnswer, asks_for_websocket, is_allowed_origin

__all__ = ["KEYED_PREFIX", "HttpSide"]

_log = structlog.get_logger(__name__)

KEYED_PREFIX = "/v1/"
"""Paths that begin so need a key."""

LetIn = Callable[[RequestHead, str, bool], Pass | HttpAnswer]


class HttpSide:
    """Serves them.

    Args:
        house: What they are let in to.
        app: Answers requests.
        let_in: Says whose a request is, given its head, its address and whether its connection is a new one.

    Attributes:
        open: Connections that have shown a key, or need none.
        requests: Requests so far.
    """

    def __init__(self, house: House, app: ASGIApp, let_in: LetIn) -> None:
        self._house = house
        self._app = app
        self._let_in = let_in
        self._connections: dict[HttpConnection, Pass | None] = {}
        self._left = trio.Event()
        self.open = 0
        self.requests = 0

    async def serve(
        self, guard: GuardedStream, visit: Visit, head: RequestHead, address: str
    ) -> RequestHead | None:
        """Serves a connection from its first request on; the caller closes the stream.

        Returns:
            The request for a WebSocket with which the client leaves HTTP, if it does; None where it is gone.

        Args:
            guard: The connection, its first request's head read.
            visit: Its place in the lobby, left once it has shown a key.
            head: That head.
            address: Of the peer.
        """
        config = self._house.config
        guard.let_stand(config.http_send_timeout_s)
        limits = HttpLimits(
            max_head_bytes=config.max_head_bytes,
            max_body_bytes=config.max_message_bytes,
            head_timeout_s=config.handshake_timeout_s,
            idle_timeout_s=config.keep_alive_s,
            requests_per_second=config.messages_per_second,
            request_burst=config.message_burst,
        )

        @contextmanager
        def admit(connection: HttpConnection, head: RequestHead) -> Iterator[tuple[ASGIApp, dict[str, Any]]]:
            self.requests += 1
            connection.is_closing |= self._house.is_draining or self._house.has_failed
            one = self._admit(connection, head, address)
            if isinstance(one, HttpAnswer):
                self._house.note_refused(one)
                _log.info("request refused", address=address, status=one.status, reason=one.body)
                yield refusal_of_answer(one).response(), {}
            elif one is None:
                yield self._app, {}
            else:
                if not connection.is_known:
                    connection.is_known = True
                    self.open += 1
                    visit.leave()
                with self._held(connection, one):
                    yield self._app, {"visitor": one}

        connection = HttpConnection(guard, admit, limits, address=address, leaves_http=asks_for_websocket)
        self._connections[connection] = None
        try:
            upgrade = await connection.serve(head)
            if upgrade is not None:
                guard.let_stand(None)
            return upgrade
        finally:
            del self._connections[connection]
            self.open -= connection.is_known
            self._left.set()

    @contextmanager
    def _held(self, connection: HttpConnection, one: Pass) -> Iterator[None]:
        account = self._house.gate.accounts.of(one.tenant)
        account.connections += 1
        self._connections[connection] = one
        try:
            yield
        finally:
            account.connections -= 1
            self._connections[connection] = None

    def _admit(self, connection: HttpConnection, head: RequestHead, address: str) -> Pass | HttpAnswer | None:
        """Whose a request is; None where that isn't asked."""
        try:
            if not head.path.startswith(KEYED_PREFIX) or head.method == "OPTIONS":
                return None
            origin = head.get("origin")
            if origin is not None and not is_allowed_origin(
                origin,
                host=head.get("host") or "",
                allow_origins=self._house.config.allow_origins,
                any_name=self._house.gate.wants_key,
            ):
                return HttpAnswer(403, "this origin may not connect; see --allow-origin")
            return self._let_in(head, address, not connection.is_known)
        except BadRequestHead as error:
            return HttpAnswer(error.status, error.reason)

    # ---- leaving

    def go_away(self) -> None:
        """Lets what is being answered go on, and takes nothing more."""
        for connection in tuple(self._connections):
            connection.close()

    def leave(self) -> None:
        """Breaks off what is still being answered; streams stay as they are."""
        for connection in tuple(self._connections):
            connection.cut()

    def show_out(self) -> None:
        """Breaks off what is answered to a key that opens nothing any more."""
        for connection, one in tuple(self._connections.items()):
            if one is not None and not self._house.gate.holds(one):
                connection.cut()

    async def wait_all_left(self) -> None:
        """Waits until no connection is open."""
        while self._connections:
            self._left = trio.Event()
            await self._left.wait()

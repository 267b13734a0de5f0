"""One HTTP/1.1 connection under an ASGI application: a request after the other, each bounded.

h11 parses and frames; this adds what it leaves open. One task reads the socket for as long as the connection
lives, never far ahead of what is used, so that a client that leaves is noticed at once and whatever works for
it is cancelled. Every request's head is shown to the door before the application hears of it. An answer that
breaks off in the middle breaks the connection, so that nobody takes half of it for the whole. A request for
another protocol that is spoken on this port ends the HTTP and goes back to whoever began it; an offer of any
other (HTTP/2) is let pass, as HTTP/1.1 allows.

It must not know paths, keys or what an answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import h11
import trio
from attrs import evolve, frozen
from starlette.types import ASGIApp

from seedance_server.errors import BadRequestHead
from seedance_server.guard import GuardedStream
from seedance_server.http.exchange import Exchange, head_scope
from seedance_server.request_head import RequestHead, head_of
from seedance_server.upgrade import HttpAnswer
from seedance_wire.token_bucket import TokenBucket

__all__ = ["Admit", "HttpConnection", "HttpLimits"]

_READ_BYTES = 4096
_READ_AHEAD_BYTES = 16_384
"""What is read beyond what is used: requests that are sent before the answer to the last one."""


@frozen(kw_only=True)
class HttpLimits:
    """Bounds of one connection; the reasons stand at their twins in `Config`.

    Attributes:
        max_head_bytes: Size of a request head.
        max_body_bytes: Size of a request body.
        head_timeout_s: Time for the next head of a client that hasn't shown a key.
        idle_timeout_s: The same of one that has.
        requests_per_second: Rate above which the next request waits, never refused.
        request_burst: Requests above the rate that don't.
    """

    max_head_bytes: int
    max_body_bytes: int
    head_timeout_s: float
    idle_timeout_s: float
    requests_per_second: float
    request_burst: float


Admit: TypeAlias = Callable[
    ["HttpConnection", RequestHead], AbstractContextManager[tuple[ASGIApp, dict[str, Any]]]
]
"""Shown each request's head: gives what answers it, and what that is to know, while it is answered."""


class HttpConnection:
    """Serves one connection.

    Args:
        stream: The connection; the caller closes it.
        admit: Decides on each request.
        limits: The bounds.
        address: Of the peer.
        leaves_http: Says whether a request is for another protocol.

    Attributes:
        is_known: Whether the client has shown a key, or needs none: set by whoever admits it.
        is_closing: Set it to have no further request taken.
        is_busy: Whether a request is being answered.
    """

    def __init__(
        self,
        stream: GuardedStream,
        admit: Admit,
        limits: HttpLimits,
        *,
        address: str,
        leaves_http: Callable[[RequestHead], bool] = lambda _: False,
    ) -> None:
        self.is_known = False
        self.is_closing = False
        self.is_busy = False
        self._stream = stream
        self._admit = admit
        self._limits = limits
        self._address = address
        self._leaves_http = leaves_http
        self._rate = TokenBucket(limits.requests_per_second, limits.request_burst, trio.current_time())
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_head_bytes)
        self._unused = 0
        self._news = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._gone = trio.Event()
        self._idling = trio.CancelScope()
        self._answering = trio.CancelScope()

    def close(self) -> None:
        """Takes no further request; ends at once while none is being answered."""
        self.is_closing = True
        self._idling.cancel()

    def cut(self) -> None:
        """Breaks off whatever is being answered."""
        self.close()
        self._answering.cancel()

    async def serve(self, head: RequestHead) -> RequestHead | None:
        """Answers the request of a head that was read already, and those that follow it.

        Returns:
            The head of a request for another protocol, with what came behind it, all answers before it sent;
            None where the connection is over.

        Raises:
            trio.BrokenResourceError: The client is gone, or went beyond a bound.
        """
        self._stream.note_accepted()
        self._parser.receive_data(head.encode())
        if head.rest:
            self._parser.receive_data(head.rest)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            while (next_head := await self._next_head()) is not None:
                await self._keep_to_rate()
                if self._leaves_http(next_head):
                    break
                await self._answer(next_head)
                self._stream.note_message()
            nursery.cancel_scope.cancel()
        # What is here behind the head only now, as the reader was still at work.
        return next_head and evolve(next_head, rest=self._parser.trailing_data[0])

    # ---- reading

    async def _read(self) -> None:
        """Gives the parser what comes, a little ahead of what is used; says when the client is gone."""
        data = b"-"
        while data:
            while self._unused >= _READ_AHEAD_BYTES:
                await self._room.park()
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._unused += len(data)
            self._parser.receive_data(data)
            self._news.unpark_all()
        self._gone.set()
        self._answering.cancel()

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._unused = 0
            self._room.unpark_all()
            await self._news.park()
        return event  # type: ignore[return-value]  # NEED_DATA is ruled out

    async def _next_head(self) -> RequestHead | None:
        """The next request's head; None where the connection is to end."""
        if self.is_closing or not self._is_ready_for_next():
            return None
        patience_s = self._limits.idle_timeout_s if self.is_known else self._limits.head_timeout_s
        with trio.move_on_after(patience_s) as self._idling:
            try:
                event = await self._next_event()
                return head_of(event) if isinstance(event, h11.Request) else None
            except h11.RemoteProtocolError as error:
                if not self._gone.is_set():
                    answer = HttpAnswer(error.error_status_hint, "not a good HTTP/1.1 request")
                    await self._stream.send_all(answer.encode())
            except BadRequestHead as error:
                await self._stream.send_all(HttpAnswer(error.status, error.reason).encode())
        return None

    def _is_ready_for_next(self) -> bool:
        """Whether the last request is over on both sides; what is here of a body that nobody wanted goes."""
        parser = self._parser
        if parser.our_state is h11.IDLE:
            return True
        try:
            while parser.our_state is h11.DONE and parser.their_state is h11.SEND_BODY:
                if parser.next_event() is h11.NEED_DATA:
                    return False
        except h11.RemoteProtocolError:
            return False
        if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
            return False
        parser.start_next_cycle()
        return True

    async def _keep_to_rate(self) -> None:
        if (wait_s := self._rate.wait_s(trio.current_time())) > 0:
            await trio.sleep(wait_s)
        self._rate.charge(trio.current_time(), 1)

    # ---- answering

    async def _answer(self, head: RequestHead) -> None:
        exchange = Exchange(
            head,
            self._parser,
            self._stream,
            next_event=self._next_event,
            gone=self._gone,
            max_body_bytes=self._limits.max_body_bytes,
        )
        self.is_busy = True
        try:
            with trio.CancelScope() as self._answering:
                if self._gone.is_set():
                    self._answering.cancel()
                with self._admit(self, head) as (app, state):
                    exchange.close_after = self.is_closing
                    await app(head_scope(head, self._address, state), exchange.receive, exchange.send)
            if not exchange.is_complete:
                self.is_closing = True
                await self._stream.abort()
        finally:
            self.is_busy = False

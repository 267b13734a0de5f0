"""A session's way to its server: one connection after the other, for as long as anybody needs one.

Connects, says HELLO, pumps both ways until the connection ends, and then does what the end asks for: connects
again after a jittered wait, sleeps until somebody needs it, or gives up. The first connection is made once
and not tried again, since the address or the key may be wrong. What messages mean is its owner's business.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from seedance_sdk.circuit_breaker import ConnectionAttempt
from seedance_sdk.errors import ConnectFailed, ConnectionLost, Diverged, ProtocolError, SeedanceError
from seedance_sdk.limits import Limits
from seedance_sdk.liveness import Liveness
from seedance_sdk.outbox import Outbox
from seedance_sdk.place import Place
from seedance_sdk.reconnect import Outage, Reaction, ReconnectDetails, reaction_to
from seedance_sdk.route import Route
from seedance_sdk.transport import Transport
from seedance_wire.client_session import ClientSession
from seedance_wire.errors import DivergedError, RemoteProtocolError

__all__ = ["Link", "LinkOwner"]

_log = logging.getLogger("seedance_sdk")


class LinkOwner(Protocol):
    """What a link asks of its session; no call waits."""

    @property
    def needed(self) -> int:
        """How many requests and streams need a connection."""

    def handle(self, event: object) -> bool:
        """Takes what the server said; returns whether that was of use to somebody.

        Raises:
            ProtocolError: It may not have.
        """

    def shed(self, error: SeedanceError) -> None:
        """Fails the request that was too large for the server."""

    def disconnected(self) -> None:
        """Hears that the connection is over."""


class Link:
    """One session's connections.

    Args:
        route: Where they go.
        core: The session as the protocol knows it.
        outbox: What it has to say.
        owner: What takes the events.
        limits: Every bound.
        outage: Decides about attempts.
        on_reconnect: Called before each wait for another connection.

    Attributes:
        connected: Whether the server has greeted on the present connection.
        opened: Set when it first did.
    """

    def __init__(
        self,
        route: Route,
        core: ClientSession,
        outbox: Outbox,
        owner: LinkOwner,
        limits: Limits,
        outage: Outage,
        on_reconnect: Callable[[ReconnectDetails], object] | None,
    ) -> None:
        self.connected = False
        self.opened = trio.Event()
        self._route = route
        self._core = core
        self._outbox = outbox
        self._owner = owner
        self._limits = limits
        self._outage = outage
        self._attempt = ConnectionAttempt()
        self._was_greeted = False  # on the present connection, or the last one
        self._liveness = Liveness(limits, needed=lambda: owner.needed > 0)
        self._on_reconnect = on_reconnect
        self._wanted = trio.Event()
        self._over: SeedanceError | None = None  # why the present connection ended
        self._greeted = trio.Event()
        self._patience = trio.CancelScope()  # until the server has greeted
        self._serving = trio.CancelScope()

    @property
    def ended_by(self) -> SeedanceError | None:
        """Why the present connection is over, if it is."""
        return self._over

    async def run(self) -> SeedanceError | None:
        """Keeps connected while that is needed; returns why no more, None after the last word was said."""
        while True:
            place = self._route.choose()
            error = await self._attach(place)
            if error is None or self._outbox.finishing:
                return None
            lost_at = trio.current_time()
            if reaction_to(error) is Reaction.RAISE:
                return error
            elsewhere = self._route.ended(error, greeted=self._was_greeted)
            if not self.opened.is_set():
                if elsewhere:
                    continue  # each endpoint is tried once
                return error
            if reaction_to(error) is Reaction.SHED:
                self._owner.shed(error)
            if not self._owner.needed:
                self._wanted = trio.Event()
                await self._wanted.wait()
                self._outage.note_welcome()  # nobody missed it until now
                if error.close_code == 1000:
                    continue  # nor was it lost: it was idle
            hold_s = self._route.choose().circuit.wait_s
            details = self._outage.next_attempt(
                error,
                trio.current_time(),
                streams=self._owner.needed,
                at_least_s=hold_s if hold_s < math.inf else 0.0,
                elsewhere=elsewhere,
            )
            if details is None:
                return self._given_up(error)
            self._tell(details)
            await trio.sleep_until(lost_at + details.wait_for_s)

    def want(self) -> None:
        """Somebody needs a connection."""
        self._wanted.set()

    def leave(self, reason: SeedanceError) -> None:
        """Ends the present connection in order; ``reason`` decides what follows."""
        self._end(reason)
        self._serving.cancel()

    # ---- one connection

    async def _attach(self, place: Place) -> SeedanceError | None:
        """Returns why the connection ended; None where this side had said its last word."""
        self._over = None
        self._was_greeted = False
        self._greeted = trio.Event()
        now_s = trio.current_time()
        deadline = self._outage.deadline(now_s) if self.opened.is_set() else math.inf
        try:
            with trio.CancelScope(deadline=deadline) as self._patience:
                self._attempt = await place.circuit.attempt()
                async with place.connect(self._core.session_id) as transport:
                    await self._serve(transport)
            if self._patience.cancelled_caught:
                self._end(ConnectFailed("the server did not answer in time"))
        except SeedanceError as error:
            self._end(error)
        finally:
            place.circuit.ended(self._attempt, self._over)
            self._core.connection_lost()
            self._drain()  # what the loss itself has ended
            self._outbox.shut()
            self.connected = False
            self._owner.disconnected()
        return self._over

    async def _serve(self, transport: Transport) -> None:
        async with trio.open_nursery() as nursery:

            async def until_over(task: Callable[[], Awaitable[None]]) -> None:
                try:
                    await task()
                except SeedanceError as error:
                    self._end(error)
                except DivergedError as error:
                    self._end(Diverged(str(error), close_code=error.close_code))
                except RemoteProtocolError as error:
                    message = f"the server broke the protocol: {error}"
                    self._end(ProtocolError(message, close_code=error.close_code))
                nursery.cancel_scope.cancel()

            self._serving = nursery.cancel_scope
            nursery.start_soon(until_over, partial(self._read, transport))
            speak = partial(self._outbox.serve, self._core.connect(), transport.send, self._drain)
            nursery.start_soon(until_over, speak)
            with trio.move_on_after(self._limits.handshake_timeout_s) as patience:
                await self._greeted.wait()
            if patience.cancelled_caught:
                waited = f"{self._limits.handshake_timeout_s:g} s"
                self._end(ConnectFailed(f"the server did not answer HELLO within {waited}"))
                nursery.cancel_scope.cancel()
            watch = partial(self._liveness.watch, transport.ping, self._route.place, self._attempt)
            nursery.start_soon(until_over, watch)
        if isinstance(self._over, ProtocolError | Diverged):
            await transport.aclose(self._over.close_code or 4400)
        else:
            await transport.aclose()

    async def _read(self, transport: Transport) -> None:
        while True:
            data = await transport.receive()
            self._liveness.note_heard()
            try:
                self._core.receive_data(data)
            finally:  # what came before a fault is sound
                self._drain()
            if self._core.has_data_to_send:
                self._outbox.wake()

    def _drain(self) -> None:
        progress = False
        while (event := self._core.next_event()) is not None:
            if self._owner.handle(event) and not progress:
                progress = True  # once is enough for all that came together
                self._outage.note_progress()
                self._route.place.circuit.progressed(self._attempt)

    def note_welcome(self) -> None:
        """The server has greeted."""
        self.connected = self._was_greeted = True
        self._route.place.circuit.welcomed(self._attempt)
        self._route.greeted()
        self._patience.deadline = math.inf
        self._outage.note_welcome()
        self._outbox.open()
        self.opened.set()
        self._greeted.set()

    def _end(self, error: SeedanceError) -> None:
        """Notes why the connection ended, or must; the first reason counts, the others follow from it."""
        if self._over is None:
            self._over = error
        self._outbox.shut()
        self._greeted.set()

    # ---- the next one

    def _given_up(self, error: SeedanceError) -> ConnectionLost:
        waited = f"{self._limits.reconnect_timeout_s:g} s"
        lost = ConnectionLost(
            f"the connection was lost and could not be restored within {waited}: {error}",
            retry_after_ms=error.retry_after_ms,
            status=error.status,
            close_code=error.close_code,
            reason=error.reason,
        )
        lost.__cause__ = error
        return lost

    def _tell(self, details: ReconnectDetails) -> None:
        _log.info("connecting again in %.2f s: %s", details.wait_for_s, details.caused_by)
        if self._on_reconnect is not None:
            try:
                self._on_reconnect(details)
            except Exception:  # noqa: BLE001 - a session must not end by a mistake in somebody's counter
                _log.exception("on_reconnect raised")

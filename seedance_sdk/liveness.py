"""Whether the server is still there: heartbeats on a connection that has gone silent (S14).

A heartbeat is three bytes in a WebSocket ping, sent only where somebody waits for a server that says nothing,
and once a second while the endpoint is on probation. It is answered by the server's WebSocket library, so an
answer means that the process is alive and its loop turns. Must not know what a connection carries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from seedance_sdk.circuit_breaker import CircuitState, ConnectionAttempt
from seedance_sdk.errors import ConnectionLost
from seedance_sdk.limits import Limits
from seedance_sdk.place import Place
from seedance_wire.heartbeat import encode_heartbeat

__all__ = ["Liveness"]

PROBATION_INTERVAL_S = 1.0


class Liveness:
    """Watches one session's connections, one after the other.

    Args:
        limits: How long silence may last, and an answer take.
        needed: Whether anybody waits for the server.

    Attributes:
        round_trip_s: Of the last heartbeat that was answered, in seconds; None before the first.
    """

    def __init__(self, limits: Limits, *, needed: Callable[[], bool]) -> None:
        self.round_trip_s: float | None = None
        self._limits = limits
        self._needed = needed
        self._heard_at = 0.0
        self._sequence = 0

    def note_heard(self) -> None:
        """Something came."""
        self._heard_at = trio.current_time()

    async def watch(
        self, ping: Callable[[bytes], Awaitable[None]], place: Place, attempt: ConnectionAttempt
    ) -> None:
        """Sends heartbeats on a connection on which the server has greeted, until it is cancelled.

        Args:
            ping: Sends a WebSocket ping with this payload and waits for the answer.
            place: Where the connection leads; hears of answers.
            attempt: The connection, as its circuit knows it.

        Raises:
            ConnectionLost: Nothing comes any more, or too little for an endpoint on probation.
        """
        pinged_at = self._heard_at = trio.current_time()
        doubtful = False
        while True:
            doubted, doubtful = doubtful, place.circuit.on_probation(attempt)
            if doubted and place.circuit.state is CircuitState.OPEN:
                raise ConnectionLost("the server is back, but did not prove itself in time", close_code=1006)
            if doubtful:
                due = pinged_at + PROBATION_INTERVAL_S
            else:
                due = max(self._heard_at, pinged_at) + self._limits.heartbeat_silence_s
            if trio.current_time() < due:
                await trio.sleep_until(due)
                continue
            pinged_at = trio.current_time()
            if doubtful or self._needed():
                await self._beat(ping, place, attempt)

    async def _beat(
        self, ping: Callable[[bytes], Awaitable[None]], place: Place, attempt: ConnectionAttempt
    ) -> None:
        sent_at = trio.current_time()
        self._sequence = (self._sequence + 1) % 256
        with trio.move_on_after(self._limits.heartbeat_timeout_s):
            await ping(encode_heartbeat(self._sequence))
            self.round_trip_s = trio.current_time() - sent_at
            place.latency.round_trip(self.round_trip_s)
            place.circuit.heartbeat_answered(attempt)
            return
        if self._heard_at <= sent_at:
            waited = f"{self._limits.heartbeat_timeout_s:g} s"
            said = f"the server was silent and answered no heartbeat within {waited}"
            raise ConnectionLost(said, close_code=1006)

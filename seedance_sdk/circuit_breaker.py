"""When an endpoint is left alone: the circuit breaker of S31, pure.

Three connection failures in a row open the circuit: for one second nobody connects, after the next failure
for two, then four, up to a cap. Then one connection is made as a probe. If the server greets it, the circuit
is half open until five heartbeats were answered, which closes it, or until that took too long. What counts as
a failure is said by whoever ends a connection (`reconnect.is_failure`). Must not know of clocks, tasks or
sockets: the time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from attrs import define, frozen

__all__ = ["CircuitBreaker", "CircuitChange", "CircuitState", "ConnectionAttempt"]

FAILURES_TO_OPEN = 3
OPEN_S = 1.0
OPEN_MAX_S = 30.0
HALF_OPEN_S = 30.0
HEARTBEATS_TO_CLOSE = 5


class CircuitState(Enum):
    """What an endpoint is trusted with."""

    CLOSED = "closed"
    """Everything: it works."""
    OPEN = "open"
    """Nothing: connections to it failed one after the other."""
    HALF_OPEN = "half_open"
    """One connection, and one new request at a time: it is back, and must show that it stays."""


@frozen(kw_only=True)
class CircuitChange:
    """A circuit changed its state; what `on_circuit_change` is told.

    Attributes:
        url: The endpoint.
        former: The state until now.
        state: The state from now on.
        open_for_s: Seconds until the next probe, where it is open; 0 elsewhere.
    """

    url: str
    former: CircuitState
    state: CircuitState
    open_for_s: float


@define(eq=False)
class ConnectionAttempt:
    """One connection, from before it is made until its end.

    Attributes:
        over: Its end was told.
    """

    over: bool = False


class CircuitBreaker:
    """The circuit of one endpoint, shared by all connections to it.

    Args:
        url: Names the endpoint in what ``on_change`` is told.
        on_change: Called at each change of state; must return soon and raise nothing.
        open_max_s: Cap of the seconds that it stays open.

    Attributes:
        state: As of the last call.
    """

    def __init__(
        self,
        url: str = "",
        *,
        on_change: Callable[[CircuitChange], object] | None = None,
        open_max_s: float = OPEN_MAX_S,
    ) -> None:
        self.state = CircuitState.CLOSED
        self._url = url
        self._on_change = on_change
        self._open_max_s = open_max_s
        self._failures = 0  # in a row, while closed
        self._times_opened = 0  # since it was last closed
        self._until_s = 0.0  # open: when a probe may be made; half open: when that is over
        self._probe: ConnectionAttempt | None = None
        self._heartbeats = 0

    def wait_s(self, now_s: float) -> float:
        """Seconds until a connection may be tried; infinite while another one is the probe."""
        self.expire(now_s)
        if self.state is CircuitState.CLOSED:
            return 0.0
        if self._probe is not None:
            return math.inf
        return max(0.0, self._until_s - now_s) if self.state is CircuitState.OPEN else 0.0

    def attempt(self, now_s: float) -> ConnectionAttempt | None:
        """Begins a connection; None where `wait_s` is not 0. Whatever becomes of it, tell `ended`."""
        if self.wait_s(now_s) > 0:
            return None
        attempt = ConnectionAttempt()
        if self.state is not CircuitState.CLOSED:
            self._probe = attempt
        return attempt

    def expire(self, now_s: float) -> None:
        """Opens a circuit that was half open for too long; its probe is none any more."""
        if self.state is CircuitState.HALF_OPEN and now_s >= self._until_s:
            self._open(now_s)

    # ---- what becomes of connections

    def on_probation(self, attempt: ConnectionAttempt) -> bool:
        """Whether the circuit is half open, and closes by this connection's heartbeats."""
        return attempt is self._probe and self.state is CircuitState.HALF_OPEN

    def welcomed(self, attempt: ConnectionAttempt, now_s: float) -> None:
        """The server has greeted."""
        if attempt is self._probe and self.state is CircuitState.OPEN:
            self._until_s, self._heartbeats = now_s + HALF_OPEN_S, 0
            self._change(CircuitState.HALF_OPEN)

    def heartbeat_answered(self, attempt: ConnectionAttempt, now_s: float) -> None:
        """A heartbeat came back."""
        self.expire(now_s)
        if not self.on_probation(attempt):
            return
        self._heartbeats += 1
        if self._heartbeats == HEARTBEATS_TO_CLOSE:
            self._failures = self._times_opened = 0
            self._probe = None
            self._change(CircuitState.CLOSED)

    def progressed(self, attempt: ConnectionAttempt) -> None:
        """A connection was of use: failures before it don't count any more.

        Nor do pauses before a probe that was: over a network that cuts and cuts again, each piece that comes
        through is worth a connection, and the next pause is the shortest.
        """
        if self.state is CircuitState.CLOSED:
            self._failures = 0
        elif self.on_probation(attempt):
            self._times_opened = 0

    def ended(self, attempt: ConnectionAttempt, now_s: float, *, failed: bool) -> None:
        """A connection is over, or could not be made; the first call for each counts.

        Args:
            attempt: Which.
            now_s: The present.
            failed: Whether that was a connection failure; an orderly end is none.
        """
        if attempt.over:
            return
        attempt.over = True
        self.expire(now_s)
        if self.state is CircuitState.CLOSED:
            self._failures += failed
            if self._failures == FAILURES_TO_OPEN:
                self._open(now_s)
        elif attempt is self._probe:
            self._probe = None
            if failed:
                self._open(now_s)

    def _open(self, now_s: float) -> None:
        open_for_s = min(OPEN_S * 2**self._times_opened, self._open_max_s)
        self._times_opened = min(self._times_opened + 1, 64)  # far above the cap, and no number without end
        self._until_s = now_s + open_for_s
        self._failures = 0
        self._probe = None
        self._change(CircuitState.OPEN, open_for_s)

    def _change(self, state: CircuitState, open_for_s: float = 0.0) -> None:
        former, self.state = self.state, state
        if self._on_change is not None:
            change = CircuitChange(url=self._url, former=former, state=state, open_for_s=open_for_s)
            self._on_change(change)

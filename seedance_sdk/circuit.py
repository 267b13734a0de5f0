"""An endpoint's circuit among the tasks that use it: who may connect, and who may ask, and who waits.

Wraps the pure `CircuitBreaker` with trio's clock. While the circuit is not closed, connections wait for
their turn as the probe, and new requests go one at a time; streams that go on wait for nobody. All on one
trio loop. Must not know what a connection carries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import trio

from seedance_sdk.circuit_breaker import (
    OPEN_MAX_S,
    CircuitBreaker,
    CircuitChange,
    CircuitState,
    ConnectionAttempt,
)
from seedance_sdk.errors import SeedanceError
from seedance_sdk.reconnect import is_failure

__all__ = ["Circuit"]

_log = logging.getLogger("seedance_sdk")


class Circuit:
    """The circuit of one endpoint.

    Args:
        url: The endpoint.
        on_change: Called at each change of state.
        open_max_s: Longest pause.
    """

    def __init__(
        self,
        url: str = "",
        on_change: Callable[[CircuitChange], object] | None = None,
        *,
        open_max_s: float = OPEN_MAX_S,
    ) -> None:
        self._breaker = CircuitBreaker(url, on_change=self._tell, open_max_s=open_max_s)
        self._on_change = on_change
        self._asking = False  # a new request is under way while the circuit is not closed
        self._changed = trio.Event()

    @property
    def state(self) -> CircuitState:
        """What the endpoint is trusted with."""
        return self._breaker.state

    @property
    def wait_s(self) -> float:
        """Seconds until a connection may be tried; infinite while another one is the probe."""
        return self._breaker.wait_s(trio.current_time())

    def wake(self) -> None:
        """Has everybody who waits look again."""
        self._changed.set()
        self._changed = trio.Event()

    # ---- connections

    async def attempt(self) -> ConnectionAttempt:
        """Waits until a connection may be made. If cancelled, none was begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            wait_s = self.wait_s
            if (attempt := self._breaker.attempt(trio.current_time())) is not None:
                return attempt
            changed = self._changed
            with trio.move_on_after(wait_s):
                await changed.wait()

    def welcomed(self, attempt: ConnectionAttempt) -> None:
        """The server has greeted."""
        self._breaker.welcomed(attempt, trio.current_time())

    def progressed(self, attempt: ConnectionAttempt) -> None:
        """The server did something of use."""
        self._breaker.progressed(attempt)

    def heartbeat_answered(self, attempt: ConnectionAttempt) -> None:
        """A heartbeat came back."""
        self._breaker.heartbeat_answered(attempt, trio.current_time())

    def on_probation(self, attempt: ConnectionAttempt) -> bool:
        """Whether the circuit closes by this connection's heartbeats."""
        self._breaker.expire(trio.current_time())
        return self._breaker.on_probation(attempt)

    def ended(self, attempt: ConnectionAttempt, error: SeedanceError | None) -> None:
        """The connection is over; ``error`` says why, None where this side had no need of it any more."""
        failed = error is not None and is_failure(error)
        self._breaker.ended(attempt, trio.current_time(), failed=failed)
        self.wake()

    # ---- requests

    async def turn(self, passes: Callable[[], bool]) -> AbstractContextManager[None]:
        """Waits until a new request may be made: at once where the circuit is closed, else one by one.

        An open circuit forbids connecting, not asking: over a connection that has outlived it, ask.

        Args:
            passes: Whether this request need not wait for an open circuit, as it has a connection, or as
                waiting has become pointless; asked at each change.

        Returns:
            A context that lasts until the request is answered. If cancelled, nothing is held.
        """
        while (self.state is CircuitState.OPEN and not passes()) or self._busy:
            await self._changed.wait()
        if self.state is not CircuitState.HALF_OPEN:
            return nullcontext()
        self._asking = True
        return self._turn()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._asking = False
            self.wake()

    @property
    def _busy(self) -> bool:
        return self._asking and self.state is CircuitState.HALF_OPEN

    def _tell(self, change: CircuitChange) -> None:
        _log.info("the circuit of %s is %s", change.url, change.state.value)
        self.wake()
        if self._on_change is not None:
            try:
                self._on_change(change)
            except Exception:  # noqa: BLE001 - a connection must not end by a mistake in somebody's counter
                _log.exception("on_circuit_change raised")

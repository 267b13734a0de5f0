"""What an application reports of its users: bounded, in batches, until a server has it for good.

Reports outlive connections and sessions. They go in their order, one batch at a time: where a session ends
before its server has confirmed a batch, the next one carries it, and the server may then count it twice; in
no other case. Must not know what sends.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from seedance_sdk.errors import ConnectionFailed, ReportsFull, SeedanceError, Unavailable
from seedance_sdk.limits import Limits
from seedance_sdk.parameters import user_event
from seedance_wire.messages import UserEvent

__all__ = ["Reports"]

_log = logging.getLogger("seedance_sdk")

_BATCH_EVENTS, _BATCH_BYTES = 512, 65_536
"""Of one message: a quarter of the shortest that servers read, as JSON doubles a payload."""
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""Before a batch is tried again in another session; doubled each time. Picked, not measured."""


class Reports:
    """The reports of one client.

    Args:
        limits: Bounds.
        send: Sends a batch and returns when the server has it for good.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        limits: Limits,
        send: Callable[[Sequence[UserEvent]], Awaitable[None]],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._send = send
        self._wall_clock = wall_clock
        self._events: deque[UserEvent] = deque()
        self._bytes = 0
        self._refusal: SeedanceError | None = None
        self._is_running = False
        self._work = trio.Event()
        self._hurry = trio.Event()
        self._empty = trio.Event()
        self._empty.set()

    @property
    def waiting(self) -> int:
        """Events that no server has for good."""
        return len(self._events)

    def report(self, action: str, payload: bytes | str, *, user_id: int, timestamp_ms: int | None) -> None:
        """Takes what a caller reports; see `AsyncSeedanceClient.report`.

        Raises:
            TypeError: A value has a wrong type.
            InvalidRequest: A value is out of range.
            SeedanceError: As from `add`.
        """
        now_ms = round(self._wall_clock() * 1e3) if timestamp_ms is None else timestamp_ms
        self.add(user_event(action, payload, user_id=user_id, timestamp_ms=now_ms))

    def add(self, event: UserEvent) -> None:
        """Takes an event.

        Raises:
            ReportsFull: Too much waits; nothing was taken.
            SeedanceError: The server refused reports for good.
        """
        if self._refusal is not None:
            raise self._refusal
        size = _size(event)
        full = len(self._events) >= self._limits.max_reports
        if full or self._bytes + size > self._limits.max_report_bytes:
            raise ReportsFull(f"{len(self._events)} reports wait for a server", retry_after_ms=1_000)
        self._events.append(event)
        self._bytes += size
        self._empty = trio.Event() if self._empty.is_set() else self._empty
        self._work.set()

    async def flush(self) -> None:
        """Sends what waits without waiting for company; returns when a server has all of it.

        Raises:
            SeedanceError: The server refused reports for good.
        """
        self._hurry.set()
        await self._empty.wait()
        if self._refusal is not None:
            raise self._refusal

    async def finish(self, timeout_s: float) -> None:
        """Waits for what was taken, so long at most, and says what is not confirmed then."""
        with trio.move_on_after(timeout_s):
            self._hurry.set()
            await self._empty.wait()
        if self._events:
            _log.warning("%d reports were not confirmed when the client closed", len(self._events))

    def start(self, nursery: trio.Nursery) -> None:
        """Has `run` at work; safe to repeat."""
        if not self._is_running:
            self._is_running = True
            nursery.start_soon(self.run)

    async def run(self) -> None:
        """Sends whatever is taken, until cancelled."""
        try:
            await self._run()
        finally:
            self._empty.set()  # nobody need wait any more

    async def _run(self) -> None:
        pause_s = _LEAST_PAUSE_S
        while True:
            await self._work.wait()
            with trio.move_on_after(self._limits.report_interval_s):
                await self._hurry.wait()
            batch = self._batch()
            try:
                await self._send(batch)
            except (ConnectionFailed, Unavailable) as error:
                _log.info("reports wait for another session: %s", error)
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            except SeedanceError as error:
                _log.warning("%d reports were refused: %s", len(self._events), error)
                self._refusal = error
                batch = tuple(self._events)
            pause_s = _LEAST_PAUSE_S
            self._forget(len(batch))

    def _batch(self) -> tuple[UserEvent, ...]:
        batch: list[UserEvent] = []
        size = 0
        for event in self._events:
            size += _size(event)
            if batch and (len(batch) == _BATCH_EVENTS or size > _BATCH_BYTES):
                break
            batch.append(event)
        return tuple(batch)

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= _size(self._events.popleft())
        if not self._events:
            self._empty.set()
            self._work = trio.Event()
            self._hurry = trio.Event()


def _size(event: UserEvent) -> int:
    return len(event.payload) + len(event.action.encode(errors="surrogatepass")) + 32

"""`scripted_server.py` whose heart beats the simple way: a task for each connection pings every 10 s.

It stands for what is usually done, and is compared with the server's own, lazy one. Flags are those of
`scripted_server.py`; the time a pong may take is `--heartbeat-timeout`.
"""

from __future__ import annotations

import sys

import trio

import scripted_server
from seedance_server import websockets
from seedance_server.heartbeats import HeartbeatStatistics, Patient
from seedance_wire.heartbeat import encode_heartbeat

__all__ = ["Tickers"]

PERIOD_S = 10.0


class Tickers:
    """What `seedance_server.heartbeats.Heartbeats` offers, done with a timer for each connection."""

    def __init__(self, _silence_s: float, patience_s: float) -> None:
        self._patience_s = patience_s
        self._scopes: dict[Patient, trio.CancelScope] = {}
        self._counts = HeartbeatStatistics()
        self._nursery: trio.Nursery

    def statistics(self) -> HeartbeatStatistics:
        """See `Heartbeats`."""
        self._counts.watched = len(self._scopes)
        return self._counts

    def watch(self, patient: Patient) -> None:
        """See `Heartbeats`."""
        self._scopes[patient] = trio.CancelScope()
        self._nursery.start_soon(self._tick, patient, self._scopes[patient])

    def forget(self, patient: Patient) -> None:
        """See `Heartbeats`."""
        if (scope := self._scopes.pop(patient, None)) is not None:
            scope.cancel()

    async def run(self) -> None:
        """See `Heartbeats`."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def _tick(self, patient: Patient, scope: trio.CancelScope) -> None:
        number = 0
        with scope:
            while True:
                await trio.sleep(PERIOD_S)
                number += 1
                self._counts.sent += 1
                with trio.move_on_after(self._patience_s) as patience:
                    await patient.beat(encode_heartbeat(number))
                if patience.cancelled_caught:
                    self._counts.dead += 1
                    patient.pronounce_dead()
                    return
                self._counts.answered += 1


if __name__ == "__main__":
    vars(websockets)["Heartbeats"] = Tickers  # which has the same four methods
    scripted_server.main(sys.argv[1:])

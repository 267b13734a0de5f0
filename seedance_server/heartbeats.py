"""Asks silent clients for a sign of life, all of them from one task, and ends those that give none (S14).

A client that says anything is alive, and is not asked. One that was silent for `--heartbeat` gets a WebSocket
ping with three bytes; its own library answers. There is a task for a connection only while its answer is
awaited. How long that took is the round-trip time.

It must not know sessions, nor what clients say.
"""

from __future__ import annotations

from typing import Protocol

import trio
from attrs import define

from seedance_wire.heartbeat import encode_heartbeat
from seedance_wire.heartbeat_schedule import HeartbeatSchedule

__all__ = ["HeartbeatStatistics", "Heartbeats", "Patient"]


class Patient(Protocol):
    """A connection, as far as its heart is concerned."""

    @property
    def heard_s(self) -> float:
        """When a byte last came, on trio's clock."""

    async def beat(self, payload: bytes) -> None:
        """Sends a ping and returns when its pong has come, or when the connection has ended."""

    def pronounce_dead(self) -> None:
        """Closes the connection: nobody is there."""


@define
class HeartbeatStatistics:
    """Counts since the start, and what is now.

    Attributes:
        watched: Connections now.
        sent: Heartbeats sent.
        answered: Of them, those that were answered.
        dead: Connections that gave no sign and were closed.
        last_rtt_s: The last round-trip time; 0 before the first.
    """

    watched: int = 0
    sent: int = 0
    answered: int = 0
    dead: int = 0
    last_rtt_s: float = 0.0


class Heartbeats:
    """The hearts of all connections.

    Args:
        silence_s: So long a client may be silent.
        patience_s: So long its answer may take.
    """

    def __init__(self, silence_s: float, patience_s: float) -> None:
        self._patience_s = patience_s
        self._schedule: HeartbeatSchedule[Patient] = HeartbeatSchedule(silence_s, lambda one: one.heard_s)
        self._watched: set[Patient] = set()
        self._sequence = 0
        self._news = trio.Event()
        self._counts = HeartbeatStatistics()

    def statistics(self) -> HeartbeatStatistics:
        """Counts so far; the object is live but for the gauge, which is taken now."""
        self._counts.watched = len(self._watched)
        return self._counts

    def watch(self, patient: Patient) -> None:
        """Watches a connection from now on."""
        self._watched.add(patient)
        self._schedule_again(patient)

    def forget(self, patient: Patient) -> None:
        """The connection is over."""
        self._watched.discard(patient)
        self._schedule.remove(patient)

    def _schedule_again(self, patient: Patient) -> None:
        was_idle = not len(self._schedule)
        self._schedule.add(patient, trio.current_time())
        if was_idle:  # otherwise what is due next was there before
            self._news.set()

    async def run(self) -> None:
        """Asks whoever is due, until cancelled."""
        async with trio.open_nursery() as asking:
            while True:
                with trio.move_on_at(self._schedule.next_look_s()):
                    await self._news.wait()
                self._news = trio.Event()
                for patient in self._schedule.due(trio.current_time()):
                    asking.start_soon(self._ask, patient)

    async def _ask(self, patient: Patient) -> None:
        asked_s = trio.current_time()
        self._sequence += 1
        self._counts.sent += 1
        with trio.move_on_after(self._patience_s) as patience:
            await patient.beat(encode_heartbeat(self._sequence))
        if patient not in self._watched:
            return
        if patience.cancelled_caught and patient.heard_s <= asked_s:
            self._counts.dead += 1
            patient.pronounce_dead()
            return
        if not patience.cancelled_caught:
            self._counts.answered += 1
            self._counts.last_rtt_s = trio.current_time() - asked_s
        self._schedule_again(patient)

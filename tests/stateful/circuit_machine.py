"""The SDK's circuit breaker as a state machine: connections to one endpoint, and a model that keeps a diary.

The model reads the state out of everything that ever happened; the breaker must agree at every moment. A
connection ends with a close code, and which of them count is the protocol's table, written out once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from attrs import define, frozen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seedance_sdk import reconnect
from seedance_sdk.causes import error_of_close
from seedance_sdk.circuit_breaker import CircuitBreaker, CircuitState, ConnectionAttempt

__all__ = ["CircuitMachine"]

FAILURES = (1005, 1006, 1011, 1012, 1015)
NO_FAILURES = (1000, 1001, 1002, 1008, 1009, 1013, 4001, 4401, 4408, 4409, 4412, 4413, 4429)


@frozen
class Entry:
    """What happened, when, on which connection.

    ``what`` is begin, welcome, beat, use, fail or end; anything else only marks the time.
    """

    at_s: float
    what: str
    connection: int


@define
class Reading:
    """The state that follows from a diary, read entry by entry."""

    state: CircuitState = CircuitState.CLOSED
    failures: int = 0
    times_opened: int = 0
    until_s: float = 0.0
    probe: int = 0
    beats: int = 0

    def read(self, entry: Entry) -> None:
        if self.state is CircuitState.HALF_OPEN and entry.at_s >= self.until_s:
            self._open(entry.at_s)
        if self.state is CircuitState.CLOSED:
            self._read_closed(entry)
        elif entry.what == "begin":
            self.probe = entry.connection
        elif entry.connection == self.probe:
            self._read_probe(entry)

    def _read_closed(self, entry: Entry) -> None:
        if entry.what == "use":
            self.failures = 0
        elif entry.what == "fail":
            self.failures += 1
            if self.failures == 3:
                self._open(entry.at_s)

    def _read_probe(self, entry: Entry) -> None:
        if entry.what == "fail":
            self._open(entry.at_s)
        elif entry.what == "end":
            self.probe = 0
        elif entry.what == "welcome" and self.state is CircuitState.OPEN:
            self.state, self.until_s, self.beats = CircuitState.HALF_OPEN, entry.at_s + 30, 0
        elif entry.what == "use" and self.state is CircuitState.HALF_OPEN:
            self.times_opened = 0
        elif entry.what == "beat" and self.state is CircuitState.HALF_OPEN:
            self.beats += 1
            if self.beats == 5:
                self.state, self.failures, self.times_opened, self.probe = CircuitState.CLOSED, 0, 0, 0

    def _open(self, at_s: float) -> None:
        self.state, self.until_s = CircuitState.OPEN, at_s + min(2**self.times_opened, 30)
        self.failures, self.probe, self.times_opened = 0, 0, self.times_opened + 1

    def wait_s(self, now_s: float) -> float:
        if self.state is CircuitState.CLOSED:
            return 0.0
        if self.probe:
            return math.inf
        return max(self.until_s - now_s, 0.0) if self.state is CircuitState.OPEN else 0.0


class Patched(Protocol):
    """Something in the real code that is different while the machine runs."""

    @property
    def patched(self) -> Callable[[], AbstractContextManager[object]]:
        """Makes the difference when entered."""


@frozen
class Whole:
    """No difference."""

    patched: Callable[[], AbstractContextManager[object]] = nullcontext


class CircuitMachine(RuleBasedStateMachine):
    """See above."""

    parts: Patched = Whole()

    def __init__(self) -> None:
        super().__init__()
        self.patch = self.parts.patched()
        self.patch.__enter__()
        self.now_s = 0.0
        self.breaker = CircuitBreaker()
        self.diary: list[Entry] = []
        self.live: dict[int, ConnectionAttempt] = {}
        self.begun = 0

    def _note(self, what: str, connection: int) -> None:
        self.diary.append(Entry(self.now_s, what, connection))

    def _read(self) -> Reading:
        reading = Reading()
        for entry in [*self.diary, Entry(self.now_s, "now", 0)]:
            reading.read(entry)
        return reading

    @rule()
    def connect(self) -> None:
        """Somebody tries; they may exactly when the diary says so."""
        may = self._read().wait_s(self.now_s) == 0
        attempt = self.breaker.attempt(self.now_s)
        assert (attempt is not None) == may, "one probe, and none before its time"
        if attempt is not None:
            self.begun += 1
            self.live[self.begun] = attempt
            self._note("begin", self.begun)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), what=st.sampled_from(["welcome", "beat", "beat", "beat", "use"]))
    def hear(self, data: st.DataObject, what: str) -> None:
        """A server greets, answers a heartbeat, or is of use."""
        number = data.draw(st.sampled_from(sorted(self.live)))
        if what == "welcome":
            self.breaker.welcomed(self.live[number], self.now_s)
        elif what == "beat":
            self.breaker.heartbeat_answered(self.live[number], self.now_s)
        else:
            self.breaker.progressed(self.live[number])
        self._note(what, number)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), code=st.sampled_from((1006, 1006, *FAILURES, *NO_FAILURES)))
    def end(self, data: st.DataObject, code: int) -> None:
        """A connection ends with a close code."""
        number = data.draw(st.sampled_from(sorted(self.live)))
        failed = reconnect.is_failure(error_of_close(code, ""))
        self.breaker.ended(self.live.pop(number), self.now_s, failed=failed)
        self._note("fail" if code in FAILURES else "end", number)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 16.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now_s += seconds
        self.breaker.expire(self.now_s)
        self._note("look", 0)

    @invariant()
    def agrees_with_the_diary(self) -> None:
        """State and waiting time follow from what happened."""
        reading = self._read()
        assert self.breaker.state is reading.state, "the breaker equals its model"
        assert self.breaker.wait_s(self.now_s) == reading.wait_s(self.now_s)

    def teardown(self) -> None:
        """Whatever was patched is whole again."""
        self.patch.__exit__(None, None, None)

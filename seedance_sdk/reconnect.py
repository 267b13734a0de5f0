"""When to connect again, how long to wait before it, and when to give up: pure decisions, no I/O.

What ended a connection decides (`reaction_to`, by close code, HTTP status and kind of failure); the wait is
full jitter, so that clients which lost one server together do not come back together. It starts over only
after a session made progress: a server that greets and hangs up is not hammered. Must not know of sessions,
streams or clocks; the time and the dice are arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from attrs import frozen

from seedance_sdk.errors import ConnectFailed, Diverged, ProtocolError, SeedanceError

__all__ = [
    "CLOSE_REACTIONS",
    "Outage",
    "Reaction",
    "ReconnectDetails",
    "full_jitter",
    "is_failure",
    "reaction_to",
]

BASE_S = 0.25
CAP_S = 10.0
MOVE_JITTER_S = 0.5
"""A server that leaves has said so: the others are well, and only a crowd must be spread."""
WAIT_S = 1.0
"""Least wait after a refusal for overload that named no time; picked, not measured."""
SHORTEST_S = 0.1
"""With less time than this left, an attempt is not worth beginning; picked, not measured."""


class Reaction(Enum):
    """What the end of a connection asks for."""

    RESUME = "resume"
    """Connect again after a jittered wait, and go on."""
    MOVE = "move"
    """The server leaves in order: connect again at once, but for a small jitter."""
    WAIT = "wait"
    """Overload: not before the time that the server named."""
    SHED = "shed"
    """One request was too large for the server: fail that one, go on with the others."""
    RAISE = "raise"
    """Final: another attempt would end the same way, or would fight."""


CLOSE_REACTIONS: Mapping[int, Reaction] = MappingProxyType(
    {
        1000: Reaction.RESUME,  # a normal end; with nothing left to receive nobody connects again
        1001: Reaction.MOVE,
        1002: Reaction.RAISE,
        1003: Reaction.RAISE,
        1005: Reaction.RESUME,
        1006: Reaction.RESUME,
        1007: Reaction.RAISE,
        1008: Reaction.RAISE,
        1009: Reaction.SHED,
        1011: Reaction.RESUME,
        1012: Reaction.RESUME,
        1013: Reaction.WAIT,
        1015: Reaction.RESUME,
        4001: Reaction.MOVE,
        4400: Reaction.RAISE,
        4401: Reaction.RAISE,
        4403: Reaction.RAISE,
        4408: Reaction.RESUME,
        4409: Reaction.RAISE,
        4410: Reaction.RAISE,
        4412: Reaction.RESUME,
        4413: Reaction.RESUME,
        4429: Reaction.WAIT,
    }
)
"""Close code -> reaction; a code that is not here counts as a cut, since proxies have codes of their own."""

_WAITING_STATUSES = frozenset({429, 503})
_PASSING_STATUSES = frozenset({408, 425})
_NO_FAILURES = frozenset({1000, 4400, 4408, 4412, 4413})
"""Close codes after which one goes on, and that say nothing against the endpoint."""


def reaction_to(error: SeedanceError) -> Reaction:
    """Says what to do about the error that ended a connection, or an attempt to make one."""
    if isinstance(error, ProtocolError):  # first: one that this side found carries the code it closed with
        return Reaction.RAISE
    if isinstance(error, Diverged):  # one stream is lost by it, and the others are sound
        return Reaction.RESUME
    if error.status is not None:
        return _reaction_to_status(error.status)
    if error.close_code is not None:
        return CLOSE_REACTIONS.get(error.close_code, Reaction.RESUME)
    passing = isinstance(error, ConnectFailed) and error.retryable
    return Reaction.RESUME if passing else Reaction.RAISE


def _reaction_to_status(status: int) -> Reaction:
    if status in _WAITING_STATUSES:
        return Reaction.WAIT
    return Reaction.RESUME if status >= 500 or status in _PASSING_STATUSES else Reaction.RAISE


def is_failure(error: SeedanceError) -> bool:
    """Says whether the end of a connection, or of an attempt to make one, counts against its endpoint (S31).

    A server that leaves in order, sheds load, refuses, or parts with one slow client is there and works.
    """
    if error.close_code is not None and error.status is None:
        return reaction_to(error) is Reaction.RESUME and error.close_code not in _NO_FAILURES
    return reaction_to(error) is Reaction.RESUME and error.status not in _PASSING_STATUSES


def full_jitter(
    *, base_s: float = BASE_S, cap_s: float = CAP_S, dice: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yields waits in seconds, for ever: each uniform from 0 to a ceiling that doubles up to ``cap_s``.

    Args:
        base_s: The first ceiling.
        cap_s: The last one.
        dice: Uniform in [0, 1).
    """
    ceiling = base_s
    while True:
        yield dice() * min(ceiling, cap_s)
        ceiling = min(2 * ceiling, cap_s)


@frozen(kw_only=True)
class ReconnectDetails:
    """A connection was lost or could not be made, and another attempt follows; what `on_reconnect` is told.

    Attributes:
        attempt: 1 for the first attempt since the session last made progress.
        wait_for_s: Seconds until the attempt.
        waited_so_far_s: Seconds since the connection was lost.
        caused_by: Why this attempt is needed.
        streams: Requests and streams that wait for it.
    """

    attempt: int
    wait_for_s: float
    waited_so_far_s: float
    caused_by: SeedanceError
    streams: int


class Outage:
    """One session's attempts to be connected again.

    Args:
        timeout_s: Longest time from the loss of a connection until the next WELCOME.
        dice: Uniform in [0, 1).
    """

    def __init__(self, timeout_s: float, *, dice: Callable[[], float] = random.random) -> None:
        self._timeout_s = timeout_s
        self._dice = dice
        self._waits = full_jitter(dice=dice)
        self._attempt = 0
        self._began: float | None = None

    def deadline(self, now_s: float) -> float:
        """Until when a WELCOME must have come."""
        return (now_s if self._began is None else self._began) + self._timeout_s

    def next_attempt(
        self,
        error: SeedanceError,
        now_s: float,
        *,
        streams: int,
        at_least_s: float = 0.0,
        elsewhere: bool = False,
    ) -> ReconnectDetails | None:
        """Decides about the next attempt.

        Args:
            error: What ended the connection or the last attempt.
            now_s: The present, in seconds on a clock that does not go back.
            streams: For the details.
            at_least_s: No attempt is made before; the circuit breaker's word. The jitter comes on top: a
                crowd whose circuits opened together must not probe together.
            elsewhere: The attempt goes to another endpoint, for which this one can't name a time.

        Returns:
            When to try, or None to give up: the error is final, or the time would be over before the attempt.
        """
        reaction = reaction_to(error)
        if reaction is Reaction.RAISE:
            return None
        if self._began is None:
            self._began = now_s
        asked_s = 0.0
        if reaction is Reaction.WAIT and not elsewhere:
            asked_s = WAIT_S if error.retry_after_ms is None else error.retry_after_ms / 1000
        left_s = self._began + self._timeout_s - now_s - max(asked_s, at_least_s)
        if left_s < SHORTEST_S:
            return None
        wait_s = next(self._waits)
        if reaction is Reaction.MOVE and self._attempt == 0:  # repeated, it is no orderly move any more
            wait_s = self._dice() * MOVE_JITTER_S
        self._attempt += 1
        return ReconnectDetails(
            attempt=self._attempt,
            wait_for_s=max(at_least_s, asked_s) + min(wait_s, left_s / 2),  # the last ones need time too
            waited_so_far_s=now_s - self._began,
            caused_by=error,
            streams=streams,
        )

    def note_welcome(self) -> None:
        """A connection stands: the time starts over with the next loss, the waits do not yet."""
        self._began = None

    def note_progress(self) -> None:
        """The session did something of use: the next loss is a new one."""
        if self._attempt:
            self._attempt = 0
            self._waits = full_jitter(dice=self._dice)

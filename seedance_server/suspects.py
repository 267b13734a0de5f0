"""Streams that process after process ended with go into the engine one at a time, until they have got on.

One of them may be what ends processes. Were they tried together, none would get on, and those that only stood
beside it would be given up with it.

It must not know streams, frames or journals.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Suspects", "Trial"]

_SUSPECT_FROM = 2
"""Processes that ended at a stream's place: whoever began it, and one that went on with it."""


class Suspects:
    """Of one process: which of them is being tried."""

    def __init__(self) -> None:
        self._tried: Trial | None = None
        self._waiting: dict[Trial, Callable[[], None]] = {}  # in the order in which they came

    def admit(self, trial: Trial, on_turn: Callable[[], None]) -> bool:
        """Whether this one may be tried now; if not, it is told once it should ask again."""
        if self._tried in (None, trial):
            self._waiting.pop(trial, None)
            self._tried = trial
            return True
        self._waiting[trial] = on_turn
        return False

    def release(self, trial: Trial) -> None:
        """This one is not in the engine any more, or has got on there. Safe to repeat."""
        self._waiting.pop(trial, None)
        if self._tried is trial:
            self._tried = None
            for on_turn in tuple(self._waiting.values()):
                on_turn()  # may well be wrong: whoever asks first has it, and the others wait on


class Trial:
    """A stream's way back into the engine.

    Args:
        suspects: Who else is tried.
        attempts: Processes that ended at its next frame.
        on_turn: Called when it may have become its turn.
        is_due: Whether another process began it.
    """

    def __init__(
        self, suspects: Suspects, attempts: int, on_turn: Callable[[], None], *, is_due: bool
    ) -> None:
        self._suspects = suspects
        self._is_suspect = attempts >= _SUSPECT_FROM
        self._on_turn = on_turn
        self._is_due = is_due

    def may_begin(self) -> bool:
        """Whether it may go into the engine; asked before it does."""
        return not self._is_suspect or self._suspects.admit(self, self._on_turn)

    def begin(self) -> bool:
        """It has its turn in the engine: whether that is its first one of this process, so to be counted."""
        was_due, self._is_due = self._is_due, False
        return was_due

    def step_aside(self) -> None:
        """It isn't in the engine just now: somebody else may be tried. Safe to repeat."""
        if self._is_suspect:
            self._suspects.release(self)

    def end(self) -> None:
        """It has got on, or is over: no suspect any more. Safe to repeat."""
        self.step_aside()
        self._is_suspect = False

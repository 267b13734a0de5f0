"""Streams that process after process ended with go into the engine one at a time, until they have got on.

One of them may be what ends processes. Were they tried together, none would get on, and those that only stood
beside it would be given up with it.

A process is counted once at a stream's place, however often the stream leaves its memory and comes back. How
it ended isn't asked: one whose step hangs is stopped in order too, by whoever watches it. Streams have time
to get on while a server drains; at one that doesn't, such as behind a long prompt, that stop counts as well.

It must not know streams, frames or journals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

__all__ = ["Suspects", "Trial"]

_SUSPECT_FROM = 2
"""Processes that ended at a stream's place: whoever began it, and one that went on with it."""
_AWAY = 4096
"""Streams remembered that have left memory; picked. At one that is forgotten the process is counted again."""


class Suspects:
    """Of one process: which of them is being tried, and which streams it is counted at.

    Args:
        most_away: Streams remembered that have left memory, the latest.
    """

    def __init__(self, most_away: int = _AWAY) -> None:
        self._most_away = most_away
        self._away: dict[Hashable, int] = {}  # the frame that comes next, in the order in which they left
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

    def note_away(self, stream: Hashable, next_frame: int) -> None:
        """A stream leaves memory at a place where this process is counted, or needn't be."""
        self._away[stream] = next_frame
        if len(self._away) > self._most_away:
            del self._away[next(iter(self._away))]

    def is_back(self, stream: Hashable, next_frame: int) -> bool:
        """Whether a stream comes back to where it was when it left; it is remembered no longer."""
        return self._away.pop(stream, None) == next_frame


class Trial:
    """A stream's way back into the engine.

    Args:
        suspects: Who else is tried.
        stream: Which stream it is.
        found_at: The next frame of one that was found in the journal; None for a new one.
        attempts: Processes that stood at that frame, perhaps this one among them.
        on_turn: Called when it may have become its turn.
    """

    def __init__(
        self,
        suspects: Suspects,
        stream: Hashable,
        found_at: int | None,
        attempts: int,
        on_turn: Callable[[], None],
    ) -> None:
        self._suspects = suspects
        self._stream = stream
        is_back = found_at is not None and suspects.is_back(stream, found_at)
        self._is_suspect = attempts - is_back >= _SUSPECT_FROM
        self._on_turn = on_turn
        self._is_due = found_at is not None and not is_back

    def may_begin(self) -> bool:
        """Whether it may go into the engine; asked before it does."""
        return not self._is_suspect or self._suspects.admit(self, self._on_turn)

    def begin(self) -> bool:
        """It has its turn in the engine: whether this process is to be counted for it, as it is once."""
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

    def leave(self, next_frame: int | None) -> None:
        """It leaves memory, with this frame to come if it comes back; None if it has ended."""
        self.end()
        if next_frame is not None and not self._is_due:
            self._suspects.note_away(self._stream, next_frame)

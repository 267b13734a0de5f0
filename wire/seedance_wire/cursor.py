"""The apply rule: which frame of a stream comes next (S8, S20).

    frame.epoch < epoch                                     -> drop, written by a former owner
    frame.id <= applied                                     -> drop, a duplicate
    frame.id == applied + 1 and frame.offset == applied_bytes -> apply
    otherwise                                               -> gap

The applied position never moves back. A value, not a process: it knows no connection, no text and no bytes;
both ends use it, the receiver to choose and the sender to prove that it numbers its frames right.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from attrs import frozen

__all__ = ["Numbered", "ReceiveCursor", "Verdict"]


class Verdict(Enum):
    """What to do with a frame."""

    APPLY = "apply"
    """It is the next one."""
    DUPLICATE = "duplicate"
    """It was applied before: drop it."""
    STALE = "stale"
    """A former owner of the session wrote it: drop it."""
    GAP = "gap"
    """Something before it is missing, or its offset contradicts what was applied."""


class Numbered(Protocol):
    """What the rule looks at; every frame has it."""

    @property
    def id(self) -> int:
        """Position among the stream's frames, from 1."""

    @property
    def epoch(self) -> int:
        """Which owner of the session wrote the frame."""

    @property
    def offset(self) -> int:
        """UTF-8 bytes of the stream's text before the frame."""


@frozen
class ReceiveCursor:
    """How far a stream has been applied.

    Attributes:
        epoch: Highest epoch seen, so that a former owner's frames are dropped.
        applied: Id of the last frame applied; 0 before the first.
        applied_bytes: UTF-8 bytes of text in all frames applied.
    """

    epoch: int
    applied: int = 0
    applied_bytes: int = 0

    def judge(self, frame: Numbered) -> Verdict:
        """Says what to do with ``frame``; changes nothing."""
        if frame.epoch < self.epoch:
            return Verdict.STALE
        if frame.id <= self.applied:
            return Verdict.DUPLICATE
        if frame.id == self.applied + 1 and frame.offset == self.applied_bytes:
            return Verdict.APPLY
        return Verdict.GAP

    def after(self, frame: Numbered, text_bytes: int) -> ReceiveCursor:
        """Returns the cursor behind ``frame``, which ``judge`` said to apply.

        Args:
            frame: The frame.
            text_bytes: UTF-8 bytes of its text; 0 for anything but a DELTA.
        """
        return ReceiveCursor(frame.epoch, frame.id, self.applied_bytes + text_bytes)

    def misfit(self, frame: Numbered, stream_id: int) -> str:
        """Says for people how a frame of this stream does not fit."""
        return (
            f"stream {stream_id}: frame {frame.id} of epoch {frame.epoch} at offset {frame.offset}, "
            f"after frame {self.applied} of epoch {self.epoch} and {self.applied_bytes} bytes"
        )

"""What an examination found: one line, and what to do about it."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

__all__ = ["Finding", "Verdict"]


class Verdict(Enum):
    """How it stands with one thing."""

    OK = "ok"
    WARN = "warn"
    """It works, and may not be what is wanted."""
    FAIL = "fail"
    """Nothing that comes after it can work."""


@frozen
class Finding:
    """One line.

    Attributes:
        verdict: How it stands.
        topic: With what.
        words: What was seen.
        advice: What to do; empty where there is nothing to do.
    """

    verdict: Verdict
    topic: str
    words: str
    advice: str = ""

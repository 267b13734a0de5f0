"""Whether the server takes new work and whether it lives, each with every reason why not.

Three questions that are easily taken for one. *Ready*: send new work here? Any reason says no. *Open*: may a
client connect? Only some say no: with a full disk nothing new is begun, but whoever has a stream here must be
able to come back for it. *Alive*: is it worth waiting? Only what a restart alone can mend says no.

It must not know where reasons come from, nor how they are told.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import frozen

__all__ = ["Cause", "Readiness", "Reason"]


class Cause(Enum):
    """What kind of thing is amiss."""

    LOADING = "loading"
    DRAINING = "draining"
    ENGINE = "engine"  # it has stopped
    STALLED = "stalled"  # it brings nothing though it should
    JOURNAL = "journal"  # it has failed, or its commits don't end
    ROOM = "room"  # its disk is full, or nearly


_OPEN = {Cause.ROOM}
"""What lets clients in that have something here."""
_FATAL = {Cause.ENGINE, Cause.STALLED}
"""What ends with the process, and seldom before."""


@frozen
class Reason:
    """One reason not to be ready.

    Attributes:
        cause: What kind of thing it is.
        text: What it is, in one line.
    """

    cause: Cause
    text: str


@frozen
class Readiness:
    """The server at one moment.

    Attributes:
        reasons: Why it isn't ready; none if it is. The gravest first.
        invariance: What the look at start found: whether output depends on what else runs; "" for no look.
        kernels: What computes the model, and why; "" where nothing is to be said of it.
    """

    reasons: tuple[Reason, ...] = ()
    invariance: str = ""
    kernels: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether new work is taken."""
        return not self.reasons

    @property
    def is_alive(self) -> bool:
        """Whether what is amiss may pass without a restart."""
        return all(reason.cause not in _FATAL for reason in self.reasons)

    @property
    def barred(self) -> str | None:
        """Why nobody is let in, one line, or None."""
        return next((reason.text for reason in self.reasons if reason.cause not in _OPEN), None)

    def lines(self, verdict: str) -> str:
        """As text: the verdict, then a line for each reason, then what is known besides."""
        lines = [verdict, *(f"{reason.cause.value}: {reason.text}" for reason in self.reasons)]
        known = (("invariance", self.invariance), ("kernels", self.kernels))
        lines += [f"{name}: {text}" for name, text in known if text]
        return "".join(f"{line}\n" for line in lines)

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "ready": self.is_ready,
            "alive": self.is_alive,
            "reasons": [{"cause": reason.cause.value, "reason": reason.text} for reason in self.reasons],
            "invariance": self.invariance or None,
            "kernels": self.kernels or None,
        }

"""Where one stream of a connection is, and what its next frame must look like.

A frozen value: `state.py` replaces it when a message was taken. It holds no text.
"""

from __future__ import annotations

from attrs import frozen

from .cursor import ReceiveCursor
from .rules import StreamState

__all__ = ["StreamProgress"]


@frozen
class StreamProgress:
    """A stream that is neither IDLE nor AWAY.

    Attributes:
        state: Where it is.
        cursor: Behind its last frame.
        settled: Whether the next frame must fit ``cursor``. Not while RESUMING but for what was being sent
            already; nor at the server behind RESUMED, which names no offset: the next frame does.
        replayable: Whether RESUME can bring what is missing.
        resume_from: While RESUMING: the last frame that the client has.
    """

    state: StreamState
    cursor: ReceiveCursor
    settled: bool = True
    replayable: bool = False
    resume_from: int = 0

    @property
    def asked_again(self) -> bool:
        """Whether it is RESUMING."""
        return self.state is StreamState.RESUMING

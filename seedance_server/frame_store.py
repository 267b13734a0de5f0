"""Where a stream's frames become durable, and how long a stream waits for that.

A journal that is full or slow isn't given up at once: room may be made, or a slow disk catch up. What is
written in the end is written once; what isn't, is no part of the stream.

It must not know frames, nor sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from seedance_server.journal.errors import JournalFull, JournalOverloaded
from seedance_server.journal.records import FrameRecord

__all__ = ["FrameStore", "append_patiently"]

_RETRY_S = (0.05, 1.0)
"""First and longest pause between attempts to write into a journal that is full or slow."""


class FrameStore(Protocol):
    """Where frames become durable; the session, which knows in whose name."""

    async def append(self, stream_id: int, frames: Sequence[FrameRecord], finish: str | None) -> None:
        """Returns once they are durable.

        Raises:
            SessionLost: They belong to somebody else now; stop, and touch nothing.
            JournalFull, JournalOverloaded: Not written; may be tried again.
        """

    def append_soon(
        self, stream_id: int, frames: Sequence[FrameRecord], settled: Callable[[bool], None]
    ) -> None:
        """Appends frames without a task that waits: calls ``settled`` once, perhaps at once.

        True: they are durable. False: they aren't, and `append` will say why.
        """

    async def note_attempt(self, stream_id: int) -> int:
        """Notes that a stream is about to be gone on with; see `Journal.note_attempt`.

        Returns:
            How many have been at its next frame; 1 where there is no room to count them.

        Raises:
            SessionLost: As from `append`.
        """

    async def abandon(self, stream_id: int) -> None:
        """Notes that a stream without durability has ended; never fails."""


async def append_patiently(
    store: FrameStore,
    stream_id: int,
    frames: Sequence[FrameRecord],
    finish: str | None,
    *,
    patience_s: float,
) -> None:
    """Appends to a journal that may be full or slow for a while; see `FrameStore.append`.

    Args:
        store: The journal.
        stream_id: The stream.
        frames: What it gets.
        finish: Its last word, if that is among them.
        patience_s: For how long it is tried again.

    Raises:
        SessionLost: As from the store.
        JournalFull, JournalOverloaded: It stayed so; nothing was written.
    """
    give_up_s = trio.current_time() + patience_s
    pause_s, longest_s = _RETRY_S
    while True:
        try:
            await store.append(stream_id, frames, finish)
        except (JournalFull, JournalOverloaded):
            if trio.current_time() >= give_up_s:
                raise
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        else:
            return

"""Checkpoints to one client: what it may forget, and how its text must read at a frame.

A checkpoint follows news, at most one in an interval, and one goes out before a stream's last frame whatever
the interval says. What it names was committed before: messages up to a number, and of each stream the last
frame sent, which the client will just have applied when it reads this, so that it can compare digests. A
digest takes as many bytes as several tokens, so those of streams that go on are said more rarely.

It must not know how frames are sent or requests carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from seedance_server.errors import OutboxClosed
from seedance_server.outbox import Outbox
from seedance_server.session import Session
from seedance_wire.messages import AckLevel, Checkpoint, StreamCheckpoint

__all__ = ["Checkpoints"]


class Checkpoints:
    """Says checkpoints on one connection.

    Args:
        session: Whose messages are counted.
        outbox: Where they go.
        ack_level: What "committed" means here.
        interval_s: Least time between two.
        digest_interval_s: Least time between two that name streams which go on.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        session: Session,
        outbox: Outbox,
        *,
        ack_level: AckLevel,
        interval_s: float,
        digest_interval_s: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._outbox = outbox
        self._ack_level = ack_level
        self._interval_s = interval_s
        self._digest_interval_s = digest_interval_s
        self._digests_at_s = -math.inf
        self._wall_clock = wall_clock
        self._said_id = session.last_sequence_id
        self._streams: dict[int, tuple[int, bytes]] = {}  # of each stream the last frame and its digest
        self._news = trio.Event()

    def note_frame(self, stream_id: int, frame_id: int, digest: bytes | None) -> None:
        """A frame was sent; without a digest there is nothing to say of it."""
        if digest is None:
            return
        self._streams[stream_id] = frame_id, digest
        self._news.set()

    def note_message(self) -> None:
        """Some message of the client's was processed."""
        self._news.set()

    def push(self, stream_id: int) -> None:
        """Says what is new, now: a stream is about to end, and its end tells its digest.

        Raises:
            OutboxClosed: As from `Outbox.put_control`.
        """
        self._streams.pop(stream_id, None)
        self._say(self._due())

    def _say(self, streams: tuple[StreamCheckpoint, ...]) -> None:
        sequence_id = self._session.last_sequence_id
        if sequence_id <= self._said_id and not streams:
            return
        self._said_id = max(self._said_id, sequence_id)
        self._outbox.put_control(
            Checkpoint(
                sequence_id=self._said_id,
                timestamp_ms=round(self._wall_clock() * 1e3),
                ack_level=self._ack_level,
                streams=streams,
            )
        )

    async def run(self) -> None:
        """Says what is new, until the connection closes."""
        try:
            while True:
                with trio.move_on_at(self._digests_at_s if self._streams else math.inf):
                    await self._news.wait()
                self._news = trio.Event()
                self._say(self._due())
                await trio.sleep(self._interval_s)
        except OutboxClosed:
            return

    def _due(self) -> tuple[StreamCheckpoint, ...]:
        """Takes the streams that are to be named now: all that have news, or none."""
        now_s = trio.current_time()
        if not self._streams or now_s < self._digests_at_s:
            return ()
        self._digests_at_s = now_s + self._digest_interval_s
        streams, self._streams = self._streams, {}
        return tuple(
            StreamCheckpoint(stream_id=stream_id, frame_id=frame_id, digest=digest)
            for stream_id, (frame_id, digest) in streams.items()
        )

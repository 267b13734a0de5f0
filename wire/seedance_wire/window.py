"""The sliding window of one stream, in frames and bytes (S22). Pure: it is told the time.

The sender may have ``size`` frames and 256 KiB unacknowledged. On each acknowledgement of something new the
window grows by a fifth if the client took under 50 ms, and shrinks to seven tenths if it took over 200 ms;
the result is rounded down, then clamped to 16..128. Latency runs from sending the *newest* frame that the
acknowledgement covers: older ones waited for it on purpose, because acknowledgements are cumulative.
Invariant: nothing is sent while the window is full, except one frame over 256 KiB on its own, which could
never be sent otherwise.
"""

from __future__ import annotations

from collections import deque

from .errors import LocalProtocolError, RemoteProtocolError

__all__ = ["INITIAL_FRAMES", "MAXIMUM_BYTES", "MAXIMUM_FRAMES", "MINIMUM_FRAMES", "SlidingWindow"]

# The numbers of S22. Factors are fractions of whole numbers: in floats, seven tenths of 90 is 62.99…, not 63.
INITIAL_FRAMES = 32
"""A window's size at first."""
MINIMUM_FRAMES = 16
"""Its least size."""
MAXIMUM_FRAMES = 128
"""Its greatest size."""
MAXIMUM_BYTES = 262_144
"""Bytes of text that a window holds, whatever its size."""
_FAST_S = 0.050
_SLOW_S = 0.200
_GROWTH = (6, 5)
_SHRINKAGE = (7, 10)


class SlidingWindow:
    """How much of one stream may be on its way to the application.

    Times are seconds on any clock that does not go back, the same one for all calls.

    Args:
        after_id: The last frame that the client has already, where a stream is resumed. It may still
            acknowledge frames up to there, which changes nothing.
    """

    def __init__(self, after_id: int = 0) -> None:
        self._size = INITIAL_FRAMES
        self._sent: deque[tuple[int, int, float]] = deque()  # (id, bytes, sent at); at most MAXIMUM_FRAMES
        self._bytes = 0
        self._newest_id = after_id

    @property
    def size(self) -> int:
        """Frames that may be unacknowledged, 16 to 128."""
        return self._size

    @property
    def in_flight(self) -> int:
        """Frames sent and not acknowledged."""
        return len(self._sent)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self._bytes

    @property
    def used(self) -> float:
        """Share of the window in use, by frames or bytes, whichever is more; may exceed 1 after a shrink."""
        return max(len(self._sent) / self._size, self._bytes / MAXIMUM_BYTES)

    @property
    def room(self) -> int:
        """What is left of the window, in frames: by frames or by its share of bytes, whichever is less."""
        by_bytes = self._size * (MAXIMUM_BYTES - self._bytes) // MAXIMUM_BYTES
        return max(min(self._size - len(self._sent), by_bytes), 0)

    def can_send(self, size_bytes: int) -> bool:
        """Says whether a frame of ``size_bytes`` may be sent now."""
        if not self._sent:
            return True
        return len(self._sent) < self._size and self._bytes + size_bytes <= MAXIMUM_BYTES

    def on_sent(self, frame_id: int, size_bytes: int, now_s: float) -> None:
        """Notes that a frame was sent.

        Args:
            frame_id: Its id, one above the frame before it (any id first).
            size_bytes: What ``can_send`` was asked about.
            now_s: When.

        Raises:
            LocalProtocolError: The window is full, or the id is not the next one.
        """
        if not self.can_send(size_bytes):
            raise LocalProtocolError(f"frame {frame_id} does not fit the window")
        if self._newest_id and frame_id != self._newest_id + 1:
            raise LocalProtocolError(f"frame {frame_id} follows frame {self._newest_id}")
        self._sent.append((frame_id, size_bytes, now_s))
        self._bytes += size_bytes
        self._newest_id = frame_id

    def skip(self, frame_id: int) -> None:
        """Notes a frame that the client has and its application has taken: the next one is behind it.

        Raises:
            LocalProtocolError: There are frames in flight, which would be before it.
        """
        if self._sent:
            raise LocalProtocolError(f"frame {frame_id} is taken, and {self._newest_id} is not")
        self._newest_id = max(self._newest_id, frame_id)

    def on_ack(self, frame_id: int, now_s: float) -> None:
        """Notes that the application took everything up to ``frame_id``, and resizes.

        One that acknowledges nothing new changes nothing.

        Raises:
            RemoteProtocolError: The frame was never sent.
        """
        if frame_id > self._newest_id:
            raise RemoteProtocolError(
                f"frame {frame_id} was acknowledged, {self._newest_id} was the last sent"
            )
        sent_at_s: float | None = None
        while self._sent and self._sent[0][0] <= frame_id:
            _, size_bytes, sent_at_s = self._sent.popleft()
            self._bytes -= size_bytes
        if sent_at_s is None:
            return
        latency_s = now_s - sent_at_s
        if latency_s < _FAST_S:
            self._resize(_GROWTH)
        elif latency_s > _SLOW_S:
            self._resize(_SHRINKAGE)

    def _resize(self, factor: tuple[int, int]) -> None:
        numerator, denominator = factor
        resized = self._size * numerator // denominator
        self._size = min(max(resized, MINIMUM_FRAMES), MAXIMUM_FRAMES)

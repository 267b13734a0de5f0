"""How fast one answer came, as its reader saw it: the line under it, live and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import define, field

from seedance_sdk.completion import Chunk
from seedance_sdk.latency_sketch import LatencySketch

__all__ = ["Pace", "format_ms"]


def format_ms(milliseconds: float | None) -> str:
    """A time for people."""
    if milliseconds is None:
        return "-"
    if milliseconds >= 59_500:
        return f"{milliseconds / 60_000:.0f} min"
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


@define
class Pace:
    """Counts of one answer.

    Attributes:
        began_s: When it was asked for, on the clock of `Chunk.received_at`.
        tokens: How many came.
    """

    clock: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)
    tokens: int = 0
    _first_s: float | None = None
    _last_s: float = 0.0
    _gaps: LatencySketch = field(factory=LatencySketch)
    _last: Chunk | None = None

    def __attrs_post_init__(self) -> None:
        self.began_s = self.clock()

    def note(self, chunk: Chunk) -> None:
        """Counts a chunk."""
        self._last = chunk
        if chunk.finish_reason is not None:
            return
        if self._first_s is None:
            self._first_s = chunk.received_at
        else:
            self._gaps.add(max(0.0, chunk.received_at - self._last_s))
        self._last_s = chunk.received_at
        self.tokens += chunk.token_count

    @property
    def first_ms(self) -> float | None:
        """From the request to the first piece."""
        return None if self._first_s is None else (self._first_s - self.began_s) * 1e3

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None before there are two moments to compare."""
        if self._first_s is None or self._last_s <= self._first_s:
            return None
        return (self.tokens - 1) / (self._last_s - self._first_s)

    def line(self) -> str:
        """The figures in words."""
        parts = [f"{self.tokens} tokens", f"first {format_ms(self.first_ms)}"]
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        last = self._last
        if last is None or last.finish_reason is None:
            return " · ".join(parts)
        gaps = self._gaps.distribution()
        if gaps.count:
            parts.append(f"gap P99 {format_ms(gaps.p99_ms)}")
        if last.usage is not None and last.usage.cached_tokens:
            parts.append(f"{last.usage.cached_tokens} of {last.usage.prompt_tokens} prompt tokens cached")
        return " · ".join([*parts, last.finish_reason])

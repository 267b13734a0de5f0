"""What waits for one socket: bounded, in order, taken in batches by the one writer that owns the socket.

Two kinds of messages share the line. Frames are data: a stream that has one waits for room, so a peer that
doesn't read slows its own streams and costs bounded memory. Everything else answers the peer and is put
without waiting, because the reader that puts it must never block; a peer that lets answers pile up isn't
reading, and the outbox says so by refusing.

It must not know sockets, encodings or what a message means.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import trio
from attrs import define, field, frozen

from seedance_server.errors import OutboxClosed
from seedance_wire.messages import Delta, Error, Frame, ServerMessage

__all__ = ["Batch", "Outbox", "frame_size", "logprobs_size"]

_FRAME_OVERHEAD_BYTES = 48
"""What a frame costs beside its text: ids, offset, tags. An upper bound for protobuf."""
_ANSWERS_TOGETHER = 16
"""Answers that leave together: to write each by itself was a third of what a request took in a burst."""
_LOGPROB_OVERHEAD_BYTES = 24
"""The same for a log probability beside its text."""


def frame_size(frame: Frame) -> int:
    """Estimates a frame's size in bytes before it is encoded; all accounting of frames uses this figure."""
    size = _FRAME_OVERHEAD_BYTES
    if isinstance(frame, Delta):
        size += len(frame.text.encode())
        size += logprobs_size(frame.logprobs)
    elif isinstance(frame, Error):
        size += len(frame.message.encode())
    return size


def logprobs_size(logprobs: Iterable[_Logprob]) -> int:
    """The part of `frame_size` that log probabilities make up."""
    size = 0
    for entry in logprobs:
        size += _LOGPROB_OVERHEAD_BYTES + len(entry.text.encode())
        size += sum(_LOGPROB_OVERHEAD_BYTES + len(text.encode()) for _, text, _ in entry.top)
    return size


class _Logprob(Protocol):
    """The engine's or the wire's."""

    @property
    def text(self) -> str: ...

    @property
    def top(self) -> Sequence[tuple[int, str, float]]: ...


@frozen
class _Entry:
    message: ServerMessage
    size_bytes: int
    is_frame: bool
    on_written: Callable[[], None] | None


@define(eq=False)
class _Waiter:
    entry: _Entry
    settled: trio.Event = field(factory=trio.Event)
    turned_away: bool = False


@frozen
class Batch:
    """Messages that leave together: frames as one WebSocket message, answers as one each."""

    messages: tuple[ServerMessage, ...]
    has_frames: bool
    on_written: tuple[Callable[[], None], ...]

    def written(self) -> None:
        """To be called once the batch has left."""
        for call in self.on_written:
            call()


class Outbox:
    """A bounded line of messages with one reader.

    Args:
        frame_bytes: Frames that may wait, in bytes by `frame_size`.
        control_messages: Other messages that may wait.
        batch_bytes: Frames that leave together, in bytes.
    """

    def __init__(self, *, frame_bytes: int, control_messages: int, batch_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._control_messages = control_messages
        self._batch_bytes = batch_bytes
        self._entries: deque[_Entry] = deque()
        self._waiting_bytes = 0
        self._waiting_control = 0
        self._closed = False
        self._news = trio.Event()
        self._line: deque[_Waiter] = deque()  # frames that found no room, in turn

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait."""
        return self._waiting_bytes

    async def put_frame(self, frame: Frame, on_written: Callable[[], None] | None = None) -> None:
        """Puts a frame at the end, waiting for room first; waiting streams get room in turn.

        Args:
            frame: The frame.
            on_written: Called once it has left.

        Raises:
            OutboxClosed: The connection is closing.

        If cancelled, the frame was not put.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        size = frame_size(frame)
        if self.offer(frame, size, on_written):
            return
        if self._closed:
            raise OutboxClosed
        waiter = _Waiter(_Entry(frame, size, is_frame=True, on_written=on_written))
        self._line.append(waiter)
        try:
            await waiter.settled.wait()
        finally:
            if not waiter.settled.is_set():
                self._line.remove(waiter)
                self._admit()  # a smaller one behind it may fit
        if waiter.turned_away:
            raise OutboxClosed

    def offer(self, frame: Frame, size_bytes: int, on_written: Callable[[], None] | None = None) -> bool:
        """Puts a frame at the end if there is room for it and nobody waits for room; False if not so.

        Args:
            frame: The frame.
            size_bytes: Its `frame_size`.
            on_written: Called once it has left.
        """
        entry = _Entry(frame, size_bytes, is_frame=True, on_written=on_written)
        if self._closed or self._line or not self._fits(entry):
            return False
        self._append(entry)
        return True

    def _fits(self, entry: _Entry) -> bool:
        """A single frame over the bound passes an empty outbox: it could never leave otherwise."""
        return not self._waiting_bytes or self._waiting_bytes + entry.size_bytes <= self._frame_bytes

    def _admit(self) -> None:
        while self._line and self._fits(self._line[0].entry):
            waiter = self._line.popleft()
            self._append(waiter.entry)
            waiter.settled.set()

    def put_control(self, message: ServerMessage) -> None:
        """Puts an answer at the end without waiting.

        Raises:
            OutboxClosed: The connection is closing, or too many answers wait: the peer isn't reading.
        """
        if self._closed or self._waiting_control >= self._control_messages:
            raise OutboxClosed
        self._waiting_control += 1
        self._append(_Entry(message, 0, is_frame=False, on_written=None))

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._waiting_bytes += entry.size_bytes
        self._news.set()

    def close(self) -> None:
        """Takes nothing more; what waits can still be taken. Safe to repeat."""
        self._closed = True
        self._news.set()
        while self._line:
            waiter = self._line.popleft()
            waiter.turned_away = True
            waiter.settled.set()

    async def take(self, at_most_bytes: float = math.inf) -> Batch | None:
        """Waits for the next batch; None once closed and empty. If cancelled, nothing is lost.

        Args:
            at_most_bytes: Frames that leave together now, where that is less than ever; one leaves always.
        """
        while not self._entries:
            if self._closed:
                return None
            self._news = trio.Event()
            await self._news.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        first = self._entries.popleft()
        taken = [first]
        if not first.is_frame:
            while self._entries and not self._entries[0].is_frame and len(taken) < _ANSWERS_TOGETHER:
                taken.append(self._entries.popleft())
            self._waiting_control -= len(taken)
            return Batch(tuple(entry.message for entry in taken), False, ())
        size = first.size_bytes
        while self._entries and self._entries[0].is_frame:
            if size + self._entries[0].size_bytes > min(self._batch_bytes, at_most_bytes):
                break
            taken.append(self._entries.popleft())
            size += taken[-1].size_bytes
        self._waiting_bytes -= size
        self._admit()
        return Batch(
            tuple(entry.message for entry in taken),
            True,
            tuple(entry.on_written for entry in taken if entry.on_written is not None),
        )

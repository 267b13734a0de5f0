"""An answer as server-sent events: each with its id, each once, in an order that a replay keeps.

Choices are sent as they come, whole frames at a time; an event's id says how far all of them are. A comment
goes out first, so that the client has the head of the answer and with it the name, and again whenever nothing
else did for a while, so that no proxy thinks that it is over. What breaks off without ``[DONE]`` isn't over.

It must not know where frames come from or how requests are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import trio
from starlette.types import Send

from seedance_server.accounts import Account
from seedance_server.http.cursor import format_cursor
from seedance_server.http.reading import Reading
from seedance_server.http.refusal import http_refusal
from seedance_server.http.shapes import Shape
from seedance_wire.messages import Delta, Error, Flush, Frame

__all__ = ["EventStream"]

_KEEP_ALIVE_S = 15.0
"""Silence after which a comment is sent: below the 30 to 60 s of usual proxies."""
_PACE_S = 1.0
"""Longest sleep for bandwidth: a quota that was raised meanwhile is noticed."""


class EventStream:
    """Sends one.

    Args:
        shape: How its pieces look.
        readings: Of its choices, in order.
        trailer: How much of what comes behind the last frame the client has: 1 the usage, 2 the end.
        account: Whose bandwidth it takes.
        send: Where it goes.

    """

    def __init__(
        self, shape: Shape, readings: Sequence[Reading], trailer: int, *, account: Account, send: Send
    ) -> None:
        self._shape = shape
        self._readings = readings
        self._trailer = trailer
        self._account = account
        self._send = send
        self._positions = [reading.sent_id for reading in readings]
        self._is_resumable = all(reading.is_durable for reading in readings)
        self._sending = trio.Lock()
        self._sent_s = 0.0

    async def run(self, headers: Sequence[tuple[bytes, bytes]], *, on_begun: Callable[[], None]) -> None:
        """Sends it to its end.

        Args:
            headers: Of the answer, beside those of every event stream.
            on_begun: Called once the client has been told the answer's name.

        Raises:
            StreamTruncated, JournalError: A choice can't be read any further.
            trio.BrokenResourceError: The client is gone.
        """
        every = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*every, *headers]})
        await self._write(b": " + self._shape.answer.name.encode() + b"\n\n")
        on_begun()
        async with trio.open_nursery() as keeping:
            keeping.start_soon(self._keep_alive)
            async with trio.open_nursery() as nursery:
                for reading in self._readings:
                    nursery.start_soon(self._follow, reading)
            keeping.cancel_scope.cancel()
        await self._write(self._last_events(), is_last=True)

    async def _follow(self, reading: Reading) -> None:
        while not reading.is_done:
            frames = await reading.next_frames()
            async with self._sending:
                await self._write(b"".join(self._events(reading, frames)))
            reading.taken()

    def _events(self, reading: Reading, frames: Sequence[Frame]) -> Iterator[bytes]:
        for frame in frames:
            self._positions[reading.index] = frame.id
            if isinstance(frame, Delta):
                yield self._event(self._shape.delta(reading.index, frame))
            elif isinstance(frame, Error):
                yield self._event(http_refusal(frame.code, frame.message).error)
            elif isinstance(frame, Flush) and frame.final is not None:
                yield self._event(self._shape.finish(reading.index, frame.final, is_first=frame.id == 1))

    def _event(self, data: dict[str, Any] | str) -> bytes:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        name = f"id: {format_cursor(self._positions)}\n" if self._is_resumable else ""
        return f"{name}data: {text}\n\n".encode()

    def _last_events(self) -> bytes:
        """What comes behind the last frame: the usage if it was asked for, and the end."""
        events = b""
        end = self._positions[0]
        self._positions[0] = end + 1
        choices = [reading.choice for reading in self._readings]
        if self._shape.with_usage and self._trailer < 1 and all(choice.final for choice in choices):
            events += self._event(self._shape.usage(choices))
        self._positions[0] = end + 2
        if self._trailer < 2:
            events += self._event("[DONE]")
        return events

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        if not data and not is_last:
            return
        while (wait_s := self._account.bandwidth_wait_s()) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await trio.sleep(min(wait_s, _PACE_S))
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._account.charge_bytes(len(data))
        self._sent_s = trio.current_time()

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep_until(self._sent_s + _KEEP_ALIVE_S)
            async with self._sending:
                if trio.current_time() >= self._sent_s + _KEEP_ALIVE_S:
                    await self._write(b": \n\n")

"""A burst whose readers are slower than the model: flow control at the socket alone, or all the way.

The coordinated run is measured: a real server, one connection, each application takes a piece every so often
and acknowledges it. Its window shrinks, FLOW says when the model is slowed down or stopped, and what isn't
taken yet is the queue. The other run is reckoned from the same rates: the model makes a piece a step whatever
happens, each stream has a buffer at the socket, and what doesn't fit is lost.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from seedance_wire.connection import Connection
from seedance_wire.messages import (
    Accepted,
    Ack,
    Delta,
    Flow,
    FlowAction,
    Flush,
    Hello,
    Sampling,
    Submit,
    Welcome,
)
from seedance_wire.state import Role

__all__ = ["Burst", "measure_burst"]

SUBPROTOCOL = "seedance.v1"
ACK_S = 0.02
SAMPLE_S = 0.1
FIRST_WINDOW = 32
SOCKET_BUFFER = 64
"""Frames that a stream's part of a socket's buffer holds in the reckoned run: picked, not measured."""


@define
class Burst:
    """What is to be run.

    Attributes:
        streams: Requests at once.
        pieces: Pieces of each answer.
        step_s: The model makes a piece of each stream in this time.
        take_s: A slow reader takes one in this time.
    """

    streams: int
    pieces: int
    step_s: float
    take_s: float


@define
class _Reader:
    """One application: what came, and what it has taken."""

    waiting: deque[int] = field(factory=deque)
    last_id: int = 0
    taken_id: int = 0
    window: int = FIRST_WINDOW
    gaps: int = 0
    pieces: int = 0
    words: list[str] = field(factory=list)
    is_over: bool = False


@define
class _Client:
    burst: Burst
    websocket: WebSocketConnection
    connection: Connection = field(factory=lambda: Connection(Role.CLIENT, SUBPROTOCOL))
    readers: dict[int, _Reader] = field(factory=dict)
    samples: list[dict[str, float]] = field(factory=list)
    finished_s: float = 0.0

    async def run(self) -> None:
        began_s = trio.current_time()
        await self._send(Hello(sdk_name="bench"))
        assert isinstance(await self._next(), Welcome)
        for _ in range(self.burst.streams):
            await self._send(
                Submit(
                    sequence_id=self.connection.next_sequence_id,
                    idempotency_key=secrets.token_bytes(16),
                    prompt="Count.",
                    sampling=Sampling(max_tokens=self.burst.pieces),
                )
            )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge)
            nursery.start_soon(self._sample, began_s)
            while len(self.readers) < self.burst.streams or not all(
                reader.is_over for reader in self.readers.values()
            ):
                self._note(await self._next(), nursery)
            while any(reader.waiting for reader in self.readers.values()):  # noqa: ASYNC110 - a figure's end
                await trio.sleep(SAMPLE_S)
            self.finished_s = trio.current_time() - began_s
            nursery.cancel_scope.cancel()

    async def _send(self, message: Any) -> None:
        await self.websocket.send_message(self.connection.send(message))

    async def _next(self) -> Any:
        while (event := self.connection.next_event()) is None:
            self.connection.receive_data(await self.websocket.get_message())
        return event

    def _note(self, event: Any, nursery: trio.Nursery) -> None:
        match event:
            case Accepted(stream_id=stream_id):
                reader = self.readers[stream_id] = _Reader()
                nursery.start_soon(self._apply, reader)
            case Delta() | Flush():
                reader = self.readers[event.stream_id]
                reader.gaps += event.id != reader.last_id + 1
                reader.last_id = event.id
                reader.waiting.append(event.id)
                reader.pieces += event.token_count if isinstance(event, Delta) else 0
                reader.is_over = isinstance(event, Flush) and event.final is not None
            case Flow(stream_id=stream_id, action=action, window=window):
                self.readers[stream_id].window = window
                self.readers[stream_id].words.append(action.value)

    async def _apply(self, reader: _Reader) -> None:
        """The application: slow, but steady."""
        while True:
            await trio.sleep(self.burst.take_s)
            if reader.waiting:
                reader.taken_id = reader.waiting.popleft()

    async def _acknowledge(self) -> None:
        said: dict[int, int] = {}
        while True:
            await trio.sleep(ACK_S)
            news = {
                stream_id: reader.taken_id
                for stream_id, reader in self.readers.items()
                if reader.taken_id != said.get(stream_id, 0)
            }
            if news:
                said |= news
                await self._send(Ack(processed=tuple(news.items())))

    async def _sample(self, began_s: float) -> None:
        while True:
            readers = list(self.readers.values()) or [_Reader()]
            self.samples.append(
                {
                    "at_s": round(trio.current_time() - began_s, 2),
                    "queued": sum(len(reader.waiting) for reader in readers) / len(readers),
                    "window": sum(reader.window for reader in readers) / len(readers),
                    "standing": sum(reader.words[-1:] == [FlowAction.PAUSE.value] for reader in readers),
                }
            )
            await trio.sleep(SAMPLE_S)


async def _coordinated(url: str, burst: Burst) -> _Client:
    async with open_websocket_url(url, subprotocols=[SUBPROTOCOL]) as websocket:
        client = _Client(burst, websocket)
        try:
            await client.run()
        except ConnectionClosed as closed:
            raise RuntimeError(f"the server closed the connection: {closed.reason}") from closed
        return client


def socket_alone(burst: Burst) -> dict[str, Any]:
    """Reckon one stream whose model isn't told: all streams of the burst are alike."""
    made = lost = 0
    buffered = 0
    took_s = 0.0
    samples = []
    at_s = 0.0
    while made < burst.pieces or buffered:
        at_s += burst.step_s
        if made < burst.pieces:
            made += 1
            if buffered < SOCKET_BUFFER:
                buffered += 1
            else:
                lost += 1
        while at_s - took_s >= burst.take_s:
            took_s += burst.take_s
            buffered -= buffered > 0
        samples.append({"at_s": round(at_s, 3), "queued": float(buffered)})
    return {
        "buffer": SOCKET_BUFFER,
        "lost": lost,
        "made": made,
        "lost_share": round(lost / made, 3),
        "samples": samples,
    }


def measure_burst(url: str, burst: Burst, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the burst; returns both runs' figures."""
    report(
        f"a burst of {burst.streams} requests: a piece each {burst.step_s * 1e3:.0f} ms, "
        f"taken each {burst.take_s * 1e3:.0f} ms …"
    )
    client = trio.run(_coordinated, url, burst)
    readers = list(client.readers.values())
    smallest = min(sample["window"] for sample in client.samples)
    alone = socket_alone(burst)
    return {
        "streams": burst.streams,
        "pieces": burst.pieces,
        "step_ms": burst.step_s * 1e3,
        "take_ms": burst.take_s * 1e3,
        "coordinated": {
            "lost": sum(burst.pieces - reader.pieces + reader.gaps for reader in readers),
            "window_first": FIRST_WINDOW,
            "window_least_mean": round(smallest, 2),
            "window_mean": round(sum(each["window"] for each in client.samples) / len(client.samples), 2),
            "window_shrinkage": round(1 - smallest / FIRST_WINDOW, 3),
            "queued_most": round(max(sample["queued"] for sample in client.samples), 1),
            "throttles": sum(reader.words.count("throttle") for reader in readers),
            "pauses": sum(reader.words.count("pause") for reader in readers),
            "seconds": round(client.finished_s, 2),
            "samples": client.samples,
        },
        "socket_alone": alone,
    }

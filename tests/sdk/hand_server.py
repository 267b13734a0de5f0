"""A server driven by hand, message by message, for tests of one session."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
import trio.testing
from attrs import evolve

from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.edges import Edges
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.endpoints import Endpoints
from seedance_sdk.errors import SeedanceError
from seedance_sdk.generation import Generation
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.limits import Limits
from seedance_sdk.memory_transport import MemoryTransport, MemoryWire
from seedance_sdk.parameters import Request, complete_request
from seedance_sdk.patience import Patience
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.route import Route
from seedance_sdk.session import Session
from seedance_sdk.transport import Transport
from seedance_wire.bookmark import Bookmark
from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.connection import Connection, InvalidSubmit
from seedance_wire.envelope import Gap
from seedance_wire.messages import (
    Accepted,
    Cancel,
    Delta,
    Durability,
    Error,
    Final,
    FinishReason,
    Flush,
    Hello,
    Message,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    StageTiming,
    Submit,
    Usage,
    Welcome,
)
from seedance_wire.messages import Limits as ServerLimits
from seedance_wire.state import Role

M = TypeVar("M", bound=Message)


ENDPOINT = Endpoint.of("ws://x", subprotocol="seedance.v1", api_key=None, user_agent="test")
FOREVER = float("inf")


def unheard() -> AnswerTimes:
    """The times of a generation that nobody asks about."""
    series = LatencyObservatory().endpoint("ws://x").series(canary=False)
    return AnswerTimes(lambda: series, 0.0)


class HandServer:
    """The server's end of one connection at a time; also the connector that leads to it.

    It keeps of a session what `Connection` must be told: how many streams began, and the client's last
    sequence id.

    Attributes:
        dials: How many connections were asked for.
        dialed_at: When.
        refusal: Raised for the next ones, where it is set.
        hangs: Whether the next ones are never answered.
    """

    def __init__(self, *, max_streams: int = 64, max_message_bytes: int = 262_144) -> None:
        self.limits = ServerLimits(
            max_message_bytes=max_message_bytes, max_streams=max_streams, max_context_tokens=100
        )
        self.dials = 0
        self.dialed_at: list[float] = []
        self.refusal: SeedanceError | None = None
        self.hangs = False
        self.wire = MemoryWire()
        self.connection = Connection(Role.SERVER, "seedance.v1")
        self._connected = trio.Event()
        self._events: deque[Message] = deque()
        self._epoch = 0
        self._last_sequence_id = 0
        self._last_stream_id = 0

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        self.dials += 1
        self.dialed_at.append(trio.current_time())
        if self.refusal is not None:
            await trio.lowlevel.checkpoint()
            raise self.refusal
        if self.hangs:
            await trio.sleep_forever()
        if self.dials > 1:
            self.wire = MemoryWire()
            self.connection = Connection(Role.SERVER, "seedance.v1")
            self._events.clear()
        self._connected.set()
        yield MemoryTransport(self.wire)

    async def left(self) -> None:
        """Waits until the client has closed the connection; `again` waits for the next one."""
        self._connected = trio.Event()
        await self.rest()

    def know(self, *, streams: int, messages: int) -> None:
        """The session has had so many streams and messages of its client's."""
        self._last_stream_id, self._last_sequence_id = streams, messages

    def forget_last_message(self) -> None:
        """The client's last message was not kept."""
        self._last_sequence_id -= 1

    async def again(self, *, present: bool = True) -> Hello:
        """Waits for another connection, and greets on it."""
        await self._connected.wait()
        return await self.greet(present=present)

    def cut(self, code: int = 1006, reason: str = "") -> None:
        """Closes the connection from the server's side; `again` waits for the next one."""
        self._connected = trio.Event()
        self.wire.close(code, reason)

    async def expect(self, kind: type[M]) -> M:
        """Takes the next message, which must be of this kind."""
        while not self._events:
            self.connection.receive_data(await self.wire.at_server.receive())
            while (event := self.connection.next_event()) is not None:
                assert not isinstance(event, InvalidSubmit | Gap)
                if isinstance(event, Submit | Cancel):
                    self._last_sequence_id = max(self._last_sequence_id, event.sequence_id)
                self._events.append(event)
        event = self._events.popleft()
        assert isinstance(event, kind), event
        return event

    async def rest(self) -> list[object]:
        """Takes everything until the client closes."""
        events: list[object] = []
        async for data in self.wire.at_server:
            self.connection.receive_data(data)
            while (event := self.connection.next_event()) is not None:
                events.append(event)
        return events

    async def silent(self) -> None:
        """Asserts that the client has nothing to say."""
        await trio.testing.wait_all_tasks_blocked()
        assert self.wire.at_server.statistics().current_buffer_used == 0

    async def say(self, *messages: Message) -> None:
        """Sends one envelope, legally."""
        await self.wire.to_client.send(self.lose(*messages))

    def lose(self, *messages: Message) -> bytes | str:
        """Says it, and returns the envelope: to the server it counts as sent."""
        frames = Delta | Flush | Error
        current = [evolve(m, epoch=self._epoch) if isinstance(m, frames) else m for m in messages]
        return self.connection.send(*current)

    async def greet(self, *, present: bool = True) -> Hello:
        """Answers HELLO; with ``present`` the session that it names, if any, is there."""
        hello = await self.expect(Hello)
        present = present and hello.session_id is not None
        if present:
            assert (hello.session_id, hello.resume_token) == ("s", b"token")
            self.connection.know_streams(self._last_stream_id)
        elif hello.session_id is not None:
            self._last_sequence_id = self._last_stream_id = 0
        self._epoch += 1
        await self.say(
            Welcome(
                session_id="s" if present or hello.session_id is None else "another",
                resume_token=b"token",
                session_present=present,
                epoch=self._epoch,
                last_sequence_id=self._last_sequence_id,
                model="m",
                limits=self.limits,
                capabilities=agreed_capabilities(hello.capabilities, self.connection.capabilities),
            )
        )
        return hello

    async def accept(self, stream_id: int, durability: Durability = Durability.COMMITTED) -> Submit:
        """Accepts the next request on a stream of this number."""
        submit = await self.expect(Submit)
        self._last_stream_id = max(stream_id, self._last_stream_id)
        await self.say(Accepted(sequence_id=submit.sequence_id, stream_id=stream_id, durability=durability))
        return submit

    async def resume(self, *, live: bool = True, last_id: int = 0) -> Resume:
        """Answers the next RESUME: its frames follow."""
        asked = await self.expect(Resume)
        await self.say(
            Resumed(
                stream_id=asked.stream_id,
                next_id=asked.last_processed_id + 1,
                epoch=self._epoch,
                first_available_id=1,
                last_id=last_id,
                live=live,
            )
        )
        return asked

    async def refuse_resume(self, failure: ResumeFailure, *, first_available_id: int, last_id: int) -> int:
        """Rejects the next RESUME; returns its stream."""
        asked = await self.expect(Resume)
        await self.say(
            ResumeRejected(
                stream_id=asked.stream_id,
                code=failure,
                first_available_id=first_available_id,
                last_id=last_id,
            )
        )
        return asked.stream_id


def delta(stream_id: int, frame_id: int, text: str, offset: int) -> Delta:
    """One piece."""
    return Delta(stream_id=stream_id, id=frame_id, epoch=1, offset=offset, text=text)


def final(stream_id: int, frame_id: int, text: str, reason: FinishReason = FinishReason.STOP) -> Flush:
    """The end of a stream whose whole text is ``text``."""
    return Flush(
        stream_id=stream_id,
        id=frame_id,
        epoch=1,
        offset=len(text.encode()),
        final=Final(
            finish_reason=reason,
            usage=Usage(prompt_tokens=3, completion_tokens=frame_id - 1),
            timing=StageTiming(prefill_ms=4.0),
            digest=hashlib.sha256(text.encode()).digest(),
        ),
    )


def asked(prompt: str = "x", **options: object) -> Request:
    return complete_request(prompt, None, options)


def bookmark(stream_id: int, last_processed_id: int, offset: int) -> Bookmark:
    """A place in a stream of the server's session."""
    return Bookmark(
        session_id="s",
        resume_token=b"token",
        stream_id=stream_id,
        last_processed_id=last_processed_id,
        offset=offset,
        digest16=bytes(16),
    )


@asynccontextmanager
async def running(
    server: HandServer,
    limits: Limits | None = None,
    *,
    bookmark: Bookmark | None = None,
    on_reconnect: Callable[[ReconnectDetails], object] | None = None,
) -> AsyncIterator[Session]:
    bounds, patience = limits or Limits(), Patience()
    session = Session(
        Route(Endpoints(Edges([ENDPOINT.url]), ENDPOINT, server, bounds, LatencyObservatory())),
        "seedance.v1",
        bounds,
        trio.current_time,
        patience,
        bookmark=bookmark,
        dice=lambda: 0.5,
        on_reconnect=on_reconnect,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.run)
        nursery.start_soon(session.run)
        yield session
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(
    server: HandServer,
    limits: Limits | None = None,
    *,
    on_reconnect: Callable[[ReconnectDetails], object] | None = None,
) -> AsyncIterator[Session]:
    async with running(server, limits, on_reconnect=on_reconnect) as session:
        await server.greet()
        yield session


async def begin(
    session: Session,
    server: HandServer,
    stream_id: int = 1,
    durability: Durability = Durability.COMMITTED,
) -> Generation:
    """Submits and accepts one request."""
    result: list[Generation | None] = []

    async def submit() -> None:
        result.append(await session.submit(asked(), FOREVER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(submit)
        await server.accept(stream_id, durability)
    assert result[0] is not None
    return result[0]

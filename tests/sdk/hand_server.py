"""A server driven by hand, message by message, for tests of one session."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
import trio.testing

from seedance_sdk.endpoint import Endpoint
from seedance_sdk.generation import Generation
from seedance_sdk.limits import Limits
from seedance_sdk.memory_transport import MemoryTransport, MemoryWire
from seedance_sdk.parameters import Request, complete_request
from seedance_sdk.session import Session
from seedance_sdk.transport import Transport
from seedance_wire.connection import Connection, InvalidSubmit
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Final,
    FinishReason,
    Flush,
    Hello,
    Message,
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


class HandServer:
    """The server's end of one connection at a time; also the connector that leads to it."""

    def __init__(self, *, max_streams: int = 64, max_message_bytes: int = 262_144) -> None:
        self.limits = ServerLimits(
            max_message_bytes=max_message_bytes, max_streams=max_streams, max_context_tokens=100
        )
        self.dials = 0
        self.wire = MemoryWire()
        self.connection = Connection(Role.SERVER, "seedance.v1")
        self._events: deque[Message] = deque()

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        self.dials += 1
        if self.dials > 1:
            self.wire = MemoryWire()
            self.connection = Connection(Role.SERVER, "seedance.v1")
        yield MemoryTransport(self.wire)

    async def expect(self, kind: type[M]) -> M:
        """Takes the next message, which must be of this kind."""
        while not self._events:
            self.connection.receive_data(await self.wire.at_server.receive())
            while (event := self.connection.next_event()) is not None:
                assert not isinstance(event, InvalidSubmit)
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
        await self.wire.to_client.send(self.connection.send(*messages))

    async def greet(self) -> None:
        """Answers HELLO."""
        await self.expect(Hello)
        await self.say(Welcome(session_id="s", epoch=1, last_sequence_id=0, model="m", limits=self.limits))

    async def accept(self, stream_id: int) -> Submit:
        """Accepts the next request on a stream of this number."""
        submit = await self.expect(Submit)
        await self.say(
            Accepted(sequence_id=submit.sequence_id, stream_id=stream_id, durability=Durability.NONE)
        )
        return submit


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


def asked(prompt: str = "x") -> Request:
    return complete_request(prompt, None, {})


@asynccontextmanager
async def running(server: HandServer, limits: Limits | None = None) -> AsyncIterator[Session]:
    bounds = limits or Limits()
    session = Session(lambda: server(ENDPOINT, bounds), "seedance.v1", bounds, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        yield session
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(server: HandServer, limits: Limits | None = None) -> AsyncIterator[Session]:
    async with running(server, limits) as session:
        await server.greet()
        yield session


async def begin(session: Session, server: HandServer, stream_id: int = 1) -> Generation:
    """Submits and accepts one request."""
    result: list[Generation | None] = []

    async def submit() -> None:
        result.append(await session.submit(asked(), FOREVER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(submit)
        await server.accept(stream_id)
    assert result[0] is not None
    return result[0]

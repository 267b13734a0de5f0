"""A server in memory with answers written beforehand, for tests of programs that use this package.

    server = ScriptedServer(Answer("Hel", "lo"), Refusal(ErrorCode.OVERLOADED))
    client = SeedanceClient(connector=server)

It speaks the real protocol through the server's half of `seedance_wire`, window included, over the same seam
as a WebSocket; only the network and the model are left out. It works in both clients, and with a virtual
clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import trio
from attrs import field, frozen

from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import error_of_status
from seedance_sdk.limits import Limits
from seedance_sdk.memory_transport import MemoryTransport, MemoryWire
from seedance_sdk.transport import Transport
from seedance_wire.connection import Connection, InvalidSubmit
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    GoAway,
    Hello,
    Message,
    Refused,
    StageTiming,
    Submit,
    Usage,
    Welcome,
)
from seedance_wire.messages import Limits as ServerLimits
from seedance_wire.state import Role
from seedance_wire.window import SlidingWindow

__all__ = ["Answer", "ErrorCode", "FinishReason", "Refusal", "ScriptedServer"]


@frozen(init=False)
class Answer:
    """What the model says to one request.

    Args:
        *pieces: One DELTA frame each.
        delay_s: Wait before each piece and before the end.
        finish_reason: How it ends.
        stop: The stop that ended it.
        error: End with an ERROR frame of this code instead.
        close_code: Close the connection with this code instead; 1006 cuts it without a goodbye.
        endless: Never end, but wait to be cancelled.
    """

    pieces: tuple[str, ...]
    delay_s: float
    finish_reason: FinishReason
    stop: str | int | None
    error: ErrorCode | None
    close_code: int | None
    endless: bool

    def __init__(
        self,
        *pieces: str,
        delay_s: float = 0.0,
        finish_reason: FinishReason = FinishReason.STOP,
        stop: str | int | None = None,
        error: ErrorCode | None = None,
        close_code: int | None = None,
        endless: bool = False,
    ) -> None:
        self.__attrs_init__(pieces, delay_s, finish_reason, stop, error, close_code, endless)


@frozen
class Refusal:
    """A request that the server does not take.

    Attributes:
        code: Why.
        message: Why, for people.
        field: The field at fault.
        retryable: Whether to try again.
        retry_after_ms: When, in milliseconds.
    """

    code: ErrorCode
    message: str = "refused by the script"
    field: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


class ScriptedServer:
    """Gives each request the next item of its script, and refuses what comes after the last.

    Pass it as ``connector`` to a client. One server takes any number of connections, one after the other or
    at once; all of them share the script and the records.

    Args:
        *script: An item for each request, in the order of their arrival.
        respond: Decides by the request instead, where the order is not known.
        refuse_status: Refuse every upgrade with this HTTP status.
        max_streams: Streams that it allows on a connection.

    Attributes:
        requests: Every SUBMIT, as it came.
        endpoints: Who connected, in order: address and headers.
        cancelled: The stream ids that were cancelled.
        acks: Every ACK with the time of its arrival, on trio's clock.
        connections: How many are open now.
    """

    def __init__(
        self,
        *script: Answer | Refusal,
        respond: Callable[[Submit], Answer | Refusal] | None = None,
        refuse_status: int | None = None,
        max_streams: int = 64,
    ) -> None:
        self.requests: list[Submit] = []
        self.endpoints: list[Endpoint] = []
        self.cancelled: list[int] = []
        self.acks: list[tuple[float, Ack]] = []
        self.connections = 0
        self._script = list(script)
        self._respond = respond
        self._refuse_status = refuse_status
        self._max_streams = max_streams
        self._peers: set[_Peer] = set()

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        """Connects; see `seedance_sdk.transport.Connector`."""
        self.endpoints.append(endpoint)
        await trio.lowlevel.checkpoint()
        if self._refuse_status is not None:
            raise error_of_status(self._refuse_status, "refused by the script", None)
        wire = MemoryWire()
        peer = _Peer(self, wire, endpoint.subprotocol, limits)
        failure: Exception | None = None
        self._peers.add(peer)
        self.connections += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.run)
                try:
                    yield MemoryTransport(wire)
                except Exception as error:  # noqa: BLE001 - carried around the nursery: it would wrap it
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            self._peers.discard(peer)
            self.connections -= 1
        if failure is not None:
            raise failure

    async def go_away(self, reason: str = "the script says so") -> None:
        """Says GOAWAY on every open connection; call it where the client runs."""
        for peer in list(self._peers):
            await peer.say(GoAway(reason=reason))

    def close(self, code: int = 1006, reason: str = "") -> None:
        """Closes every open connection with ``code``; call it where the client runs."""
        for peer in list(self._peers):
            peer.close(code, reason)

    def limits(self, max_message_bytes: int) -> ServerLimits:
        """What WELCOME says."""
        return ServerLimits(
            max_message_bytes=max_message_bytes, max_streams=self._max_streams, max_context_tokens=8192
        )

    def next_item(self, request: Submit) -> Answer | Refusal:
        """Records a request and says what it gets."""
        self.requests.append(request)
        if self._respond is not None:
            return self._respond(request)
        if self._script:
            return self._script.pop(0)
        return Refusal(ErrorCode.INTERNAL, f"the script has no answer to request {len(self.requests)}")


@frozen(eq=False)
class _Generation:
    """A stream as its server sees it."""

    scope: trio.CancelScope = field(factory=trio.CancelScope)
    window: SlidingWindow = field(factory=SlidingWindow)
    acked: trio.Condition = field(factory=trio.Condition)


class _Peer:
    """The server's end of one connection."""

    def __init__(self, server: ScriptedServer, wire: MemoryWire, subprotocol: str, limits: Limits) -> None:
        self._server = server
        self._wire = wire
        self._limits = limits
        self._connection = Connection(Role.SERVER, subprotocol, max_message_bytes=limits.max_message_bytes)
        self._streams: dict[int, _Generation] = {}
        self._sending = trio.Lock()
        self._closed = False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            with suppress(trio.ClosedResourceError):  # closed by the script
                async for data in self._wire.at_server:
                    try:
                        self._connection.receive_data(data)
                    except RemoteProtocolError as error:
                        self.close(error.close_code, str(error))
                        break
                    while (event := self._connection.next_event()) is not None:
                        await self._handle(event, nursery)
            nursery.cancel_scope.cancel()

    def close(self, code: int, reason: str = "") -> None:
        if not self._closed:
            self._closed = True
            self._wire.close(code, reason)

    async def say(self, message: Message) -> None:
        async with self._sending:  # what the connection has made must be sent in that order
            if not self._closed:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._wire.to_client.send(self._connection.send(message))

    async def _handle(self, event: Message | InvalidSubmit, nursery: trio.Nursery) -> None:
        match event:
            case Hello():
                limits = self._server.limits(self._limits.max_message_bytes)
                await self.say(
                    Welcome(
                        session_id="scripted", epoch=1, last_sequence_id=0, model="scripted", limits=limits
                    )
                )
            case InvalidSubmit():
                refusal = Refusal(ErrorCode.INVALID_REQUEST, event.reason, event.field)
                await self._refuse(event.sequence_id, refusal)
            case Submit():
                await self._answer(event, nursery)
            case Cancel():
                self._server.cancelled.append(event.stream_id)
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].scope.cancel()
            case Ack():
                self._server.acks.append((trio.current_time(), event))
                await self._take_acks(event.processed)
            case Bye():
                self.close(1000)

    async def _refuse(self, sequence_id: int, refusal: Refusal) -> None:
        await self.say(
            Refused(
                sequence_id=sequence_id,
                code=refusal.code,
                message=refusal.message,
                field=refusal.field,
                retryable=refusal.retryable,
                retry_after_ms=refusal.retry_after_ms,
            )
        )

    async def _answer(self, request: Submit, nursery: trio.Nursery) -> None:
        item = self._server.next_item(request)
        if isinstance(item, Refusal):
            await self._refuse(request.sequence_id, item)
            return
        stream_id = request.sequence_id  # rises, as stream ids must
        self._streams[stream_id] = _Generation()
        await self.say(
            Accepted(sequence_id=request.sequence_id, stream_id=stream_id, durability=Durability.NONE)
        )
        nursery.start_soon(self._stream, stream_id, item)

    async def _take_acks(self, processed: Iterable[tuple[int, int]]) -> None:
        for stream_id, frame_id in processed:
            generation = self._streams.get(stream_id)
            if generation is not None:
                generation.window.on_ack(frame_id, trio.current_time())
                async with generation.acked:
                    generation.acked.notify_all()

    async def _stream(self, stream_id: int, answer: Answer) -> None:
        generation = self._streams[stream_id]
        position = _Position(stream_id)
        with generation.scope:
            for piece in answer.pieces:
                await trio.sleep(answer.delay_s)
                await self._wait_for_room(generation, len(piece.encode()))
                generation.window.on_sent(position.next_id, len(piece.encode()), trio.current_time())
                with trio.CancelScope(shield=True):  # counted is sent: a cancel waits for the next piece
                    await self.say(position.delta(piece))
            await trio.sleep(answer.delay_s if not answer.endless else float("inf"))
        if answer.close_code is not None and not generation.scope.cancelled_caught:
            self.close(answer.close_code, "closed by the script")
            return
        await self._wait_for_room(generation, 0)
        generation.window.on_sent(position.next_id, 0, trio.current_time())
        if answer.error is not None and not generation.scope.cancelled_caught:
            await self.say(position.error(answer.error))
        elif generation.scope.cancelled_caught:
            await self.say(position.final(FinishReason.CANCELLED, None))
        else:
            await self.say(position.final(answer.finish_reason, answer.stop))

    async def _wait_for_room(self, generation: _Generation, size_bytes: int) -> None:
        async with generation.acked:
            while not generation.window.can_send(size_bytes):
                await generation.acked.wait()


class _Position:
    """Numbers the frames of one stream."""

    def __init__(self, stream_id: int) -> None:
        self.next_id = 1
        self._stream_id = stream_id
        self._text = b""

    def _take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def delta(self, text: str) -> Delta:
        offset = len(self._text)
        self._text += text.encode()
        return Delta(stream_id=self._stream_id, id=self._take_id(), epoch=1, offset=offset, text=text)

    def error(self, code: ErrorCode) -> Error:
        return Error(
            stream_id=self._stream_id,
            id=self._take_id(),
            epoch=1,
            offset=len(self._text),
            code=code,
            message="failed by the script",
        )

    def final(self, reason: FinishReason, stop: str | int | None) -> Flush:
        final = Final(
            finish_reason=reason,
            usage=Usage(prompt_tokens=1, completion_tokens=self.next_id - 1),
            timing=StageTiming(),
            digest=hashlib.sha256(self._text).digest(),
            stop=stop,
        )
        return Flush(
            stream_id=self._stream_id, id=self._take_id(), epoch=1, offset=len(self._text), final=final
        )

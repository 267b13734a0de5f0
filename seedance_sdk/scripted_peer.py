"""A scripted server's end of one connection: the real protocol, window included.

Holds nothing that has to survive the connection; that is in `scripted_session`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import trio
from attrs import evolve, field, frozen

from seedance_sdk.limits import Limits
from seedance_sdk.memory_transport import MemoryWire
from seedance_sdk.script import Answer, Cut, Refusal
from seedance_sdk.scripted_session import ScriptedSession, ScriptedStream
from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.connection import Connection, Event, InvalidSubmit
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    AckLevel,
    Bye,
    Cancel,
    Checkpoint,
    Durability,
    ErrorCode,
    Hello,
    Message,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    StreamCheckpoint,
    Submit,
    Welcome,
)
from seedance_wire.messages import Event as Report
from seedance_wire.messages import Limits as ServerLimits
from seedance_wire.rules import Role
from seedance_wire.window import SlidingWindow

__all__ = ["PeerOwner", "ScriptedPeer"]


class PeerOwner(Protocol):
    """What a connection asks of its server."""

    @property
    def durable(self) -> bool:
        """Whether streams survive their connection."""

    def limits(self, max_message_bytes: int) -> ServerLimits:
        """What WELCOME says."""

    def attach(self, hello: Hello, peer: ScriptedPeer) -> tuple[ScriptedSession, bool]:
        """The session that a client is in from now on, and whether it is the one that it named."""

    def answer(self, request: Submit) -> Answer | Refusal:
        """Records a request, and says what it gets."""

    def known(self, request: Submit, session: ScriptedSession) -> Accepted | Refused | None:
        """What a request gets that was made in another session under the same key."""

    def note_cancel(self, stream_id: int) -> None:
        """Records a CANCEL."""

    def note_ack(self, ack: Ack) -> None:
        """Records an ACK."""

    def take_report(self, report: Report) -> Refusal | None:
        """Records reported events, or says why not."""


@frozen(eq=False)
class _Attachment:
    """A stream as this connection sends it."""

    scope: trio.CancelScope = field(factory=trio.CancelScope)
    window: SlidingWindow = field(factory=SlidingWindow)
    acked: trio.Condition = field(factory=trio.Condition)


class ScriptedPeer:
    """The server's end of one connection.

    Args:
        server: What it belongs to.
        wire: The connection.
        subprotocol: The encoding.
        limits: The client's; the server reads no longer messages either.
    """

    def __init__(self, server: PeerOwner, wire: MemoryWire, subprotocol: str, limits: Limits) -> None:
        self._server = server
        self._wire = wire
        self._limits = limits
        self._connection = Connection(Role.SERVER, subprotocol, max_message_bytes=limits.max_message_bytes)
        self._session = ScriptedSession(id="", resume_token=b"")
        self._attachments: dict[int, _Attachment] = {}
        self._sending = trio.Lock()
        self._closed = False

    async def run(self) -> None:
        """Serves until the connection ends."""
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
        """Closes the connection; the client still gets what is on its way."""
        if not self._closed:
            self._closed = True
            self._wire.close(code, reason)

    async def say(self, *messages: Message) -> None:
        """Sends one message."""
        async with self._sending:  # what the connection has made must be sent in that order
            if not self._closed:
                gone = (trio.BrokenResourceError, trio.ClosedResourceError)
                with suppress(*gone), trio.CancelScope(shield=True):  # what was counted is sent
                    await self._wire.to_client.send(self._connection.send(*messages))

    async def _handle(self, event: Event, nursery: trio.Nursery) -> None:
        if isinstance(event, InvalidSubmit | Submit | Cancel | Report):
            self._session.note_sequence(event.sequence_id)
        match event:
            case Hello():
                await self._greet(event)
            case InvalidSubmit():
                refusal = Refusal(ErrorCode.INVALID_REQUEST, event.reason, event.field)
                await self.say(_refused(event.sequence_id, refusal))
            case Submit():
                await self._answer(event, nursery)
            case Cancel():
                await self._cancel(event)
            case Resume():
                await self._resume(event, nursery)
            case Report():
                await self._take_report(event)
            case Ack():
                self._server.note_ack(event)
                await self._take_acks(event.processed)
            case Bye():
                self.close(1000)

    async def _greet(self, hello: Hello) -> None:
        self._session, present = self._server.attach(hello, self)
        if present:
            self._connection.know_streams(len(self._session.streams))
        await self.say(
            Welcome(
                session_id=self._session.id,
                resume_token=self._session.resume_token,
                session_present=present,
                epoch=self._session.epoch,
                last_sequence_id=self._session.last_sequence_id,
                model="scripted",
                limits=self._server.limits(self._limits.max_message_bytes),
                capabilities=agreed_capabilities(hello.capabilities, self._connection.capabilities),
                retention_ms=3_600_000,
                resume_window_ms=600_000,
            )
        )

    async def _take_report(self, report: Report) -> None:
        if report.batch_id not in self._session.batches:
            refusal = self._server.take_report(report)
            if refusal is not None:
                await self.say(_refused(report.sequence_id, refusal))
            else:
                self._session.batches.add(report.batch_id)
        await self._checkpoint()

    async def _checkpoint(self, *streams: StreamCheckpoint) -> None:
        level = AckLevel.COMMITTED if self._server.durable else AckLevel.RECEIVED
        await self.say(
            Checkpoint(
                sequence_id=self._session.last_sequence_id,
                timestamp_ms=round(1000 * trio.current_time()),
                ack_level=level,
                streams=streams,
            )
        )

    async def _answer(self, request: Submit, nursery: trio.Nursery) -> None:
        session = self._session
        said = session.answers.get(request.idempotency_key) or self._server.known(request, session)
        if said is not None:  # it was sent again: nothing is begun twice
            said = evolve(said, sequence_id=request.sequence_id)
            if isinstance(said, Accepted):
                session.answers[request.idempotency_key] = said
                said = evolve(said, replayed=True)
            await self.say(said)
            await self._checkpoint()
            return
        item = self._server.answer(request)
        if isinstance(item, Refusal):
            refused = session.answers[request.idempotency_key] = _refused(request.sequence_id, item)
            await self.say(refused)
            return
        durability = Durability.COMMITTED if self._server.durable else Durability.NONE
        stream = session.begin(item, request.durability or durability)
        accepted = session.answers[request.idempotency_key] = Accepted(
            sequence_id=request.sequence_id, stream_id=stream.id, durability=stream.durability
        )
        await self.say(accepted)
        await self._checkpoint()
        self._attach(stream, 0, nursery)

    async def _cancel(self, request: Cancel) -> None:
        self._server.note_cancel(request.stream_id)
        if request.stream_id in self._session.streams:
            self._session.streams[request.stream_id].cancel()
        await self._checkpoint()

    async def _resume(self, request: Resume, nursery: trio.Nursery) -> None:
        stream = self._session.streams.get(request.stream_id)
        last_id = len(stream.frames) if stream is not None else 0
        failure: ResumeFailure | None = None
        if stream is None or stream.durability is Durability.NONE:
            failure = ResumeFailure.NOT_FOUND
        elif request.last_processed_id > last_id:
            failure = ResumeFailure.CURSOR_AHEAD
        elif request.digest not in (None, stream.digest(request.last_processed_id)[:16]):
            failure = ResumeFailure.DIVERGED
        if stream is None or failure is not None:
            failure = failure or ResumeFailure.NOT_FOUND
            await self.say(ResumeRejected(stream_id=request.stream_id, code=failure, last_id=last_id))
            return
        if stream.id in self._attachments:
            self._attachments.pop(stream.id).scope.cancel()
        await self.say(
            Resumed(
                stream_id=stream.id,
                next_id=request.last_processed_id + 1,
                epoch=self._session.epoch,
                first_available_id=1,
                last_id=last_id,
                live=not stream.has_ended(),
            )
        )
        self._attach(stream, request.last_processed_id, nursery)

    def _attach(self, stream: ScriptedStream, last_id: int, nursery: trio.Nursery) -> None:
        attachment = self._attachments[stream.id] = _Attachment(window=SlidingWindow(last_id))
        nursery.start_soon(self._send, stream, attachment, last_id)

    async def _send(self, stream: ScriptedStream, attachment: _Attachment, last_id: int) -> None:
        """Sends what the stream has after a frame, then what comes, to its end."""
        with attachment.scope:
            while True:
                if last_id == len(stream.frames):
                    if stream.has_ended():
                        return
                    instead = await stream.advance()
                    if isinstance(instead, Cut):
                        self.close(instead.code, instead.reason)
                        return
                    if instead is not None:
                        await self.say(instead)
                        continue
                    if stream.has_ended():
                        digest = stream.digest(len(stream.frames))[:16]
                        checkpoint = StreamCheckpoint(
                            stream_id=stream.id, frame_id=len(stream.frames), digest=digest
                        )
                        await self._checkpoint(checkpoint)
                last_id += 1
                frame = stream.frame(last_id, self._session.epoch)
                size_bytes = len(getattr(frame, "text", "").encode())
                await self._wait_for_room(attachment, size_bytes)
                attachment.window.on_sent(last_id, size_bytes, trio.current_time())
                await self.say(frame)

    async def _take_acks(self, processed: Iterable[tuple[int, int]]) -> None:
        for stream_id, frame_id in processed:
            attachment = self._attachments.get(stream_id)
            if attachment is not None:
                attachment.window.on_ack(frame_id, trio.current_time())
                async with attachment.acked:
                    attachment.acked.notify_all()

    async def _wait_for_room(self, attachment: _Attachment, size_bytes: int) -> None:
        async with attachment.acked:
            while not attachment.window.can_send(size_bytes):
                await attachment.acked.wait()


def _refused(sequence_id: int, refusal: Refusal) -> Refused:
    return Refused(
        sequence_id=sequence_id,
        code=refusal.code,
        message=refusal.message,
        field=refusal.field,
        retryable=refusal.retryable,
        retry_after_ms=refusal.retry_after_ms,
    )

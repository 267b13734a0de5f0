"""What a check of a client stands on: the client under test, and a server that says what the check wants.

It keeps of a session what the rules ask of a server: epoch, the client's last number, how many streams began.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve
from trio_websocket import ConnectionClosed, WebSocketRequest, wrap_server_stream

from conformance.peer import CheckFailed, Closed, CutStream, Peer, require
from conformance.subject import Refusal, Subject
from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Final,
    FinishReason,
    Flush,
    Hello,
    Limits,
    StageTiming,
    Submit,
    Usage,
    Welcome,
)
from seedance_wire.state import Role

__all__ = ["SESSION", "TOKEN", "ClientStage", "Pending", "answer", "client_stage"]

SESSION, TOKEN = "conformance", bytes(range(32))
_WELCOME = Welcome(
    session_id=SESSION,
    epoch=1,
    last_sequence_id=0,
    model="conformance",
    limits=Limits(max_message_bytes=262_144, max_streams=64, max_context_tokens=4096),
    resume_token=TOKEN,
    retention_ms=60_000,
    resume_window_ms=60_000,
)


def answer(
    stream_id: int, pieces: Sequence[str], epoch: int = 1, reason: FinishReason = FinishReason.STOP
) -> list[Delta | Flush]:
    """All frames of a stream: a DELTA for each piece, then the end."""
    frames: list[Delta | Flush] = []
    offset = 0
    for number, piece in enumerate(pieces, 1):
        frames.append(Delta(stream_id=stream_id, id=number, epoch=epoch, offset=offset, text=piece))
        offset += len(piece.encode())
    frames.append(
        Flush(
            stream_id=stream_id,
            id=len(pieces) + 1,
            epoch=epoch,
            offset=offset,
            final=Final(
                finish_reason=reason,
                usage=Usage(prompt_tokens=1, completion_tokens=len(pieces)),
                timing=StageTiming(),
                digest=hashlib.sha256("".join(pieces).encode()).digest(),
            ),
        )
    )
    return frames


class Pending:
    """A command that is under way."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._answer: dict[str, Any] | Exception = {}

    def settle(self, answer: dict[str, Any] | Exception) -> None:
        """Notes what came of it."""
        self._answer = answer
        self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether it was answered."""
        return self._done.is_set()

    async def result(self) -> dict[str, Any]:
        """Waits for the answer; raises `Refusal` where that is one."""
        await self._done.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def refusal(self) -> Refusal:
        """Waits for the answer, which must be an error."""
        try:
            found = await self.result()
        except Refusal as error:
            return error
        raise CheckFailed(f"an error was due, it answered {found}")


class ClientStage:
    """See above.

    Attributes:
        subject: The client under test.
        subprotocol: Which one it is to use.
        capabilities: Those that this server agrees to where the client offers them.
        epoch: Of the newest connection.
        last_sequence_id: The client's highest number that this server has kept.
    """

    def __init__(
        self,
        subject: Subject,
        subprotocol: str,
        port: int,
        arrivals: trio.MemoryReceiveChannel[trio.SocketStream],
    ) -> None:
        self.subject = subject
        self.subprotocol = subprotocol
        self.capabilities: tuple[str, ...] = ()
        self.epoch = 0
        self.last_sequence_id = 0
        self.streams = 0
        self.url = f"ws://127.0.0.1:{port}/v1/chat"
        self._arrivals = arrivals
        self._nursery: trio.Nursery

    def start(self, do: str, **arguments: object) -> Pending:
        """Gives the client a command, without waiting for its answer."""
        pending = Pending()

        async def ask() -> None:
            try:
                pending.settle(await self.subject.ask(do, **arguments))
            except Exception as error:  # noqa: BLE001 - raised where the answer is asked for
                pending.settle(error)

        self._nursery.start_soon(ask)
        return pending

    async def connect(self) -> None:
        """Has the client connect, at once or with its first request."""
        await self.subject.ask("connect", url=self.url, subprotocol=self.subprotocol)

    async def request(self) -> tuple[WebSocketRequest, trio.abc.Stream]:
        """Waits for the client's next connection and returns its request for an upgrade."""
        return await self._request(await self._arrivals.receive(), None)

    async def _request(
        self, stream: trio.SocketStream, cut_after: int | None
    ) -> tuple[WebSocketRequest, trio.abc.Stream]:
        clipped = CutStream(stream, send_bytes=cut_after)
        request = await wrap_server_stream(self._nursery, clipped)
        return request, clipped

    async def arrival(self, cut_after: int | None = None) -> Peer:
        """Waits for the client's next connection and upgrades it.

        Args:
            cut_after: Cut it once so many bytes were sent to the client, those of the upgrade included.

        Raises:
            Closed: It is gone already, perhaps because it was cut.
        """
        request, stream = await self._request(await self._arrivals.receive(), cut_after)
        offered = request.proposed_subprotocols
        require(self.subprotocol in offered, f"it offers the subprotocols {offered}, not {self.subprotocol}")
        try:
            websocket = await request.accept(subprotocol=self.subprotocol)
        except (ConnectionClosed, trio.BrokenResourceError):
            raise Closed(1006, "in the upgrade") from None
        return Peer(websocket, Connection(Role.SERVER, self.subprotocol), stream)

    async def nobody_comes(self, seconds: float) -> None:
        """Fails if the client connects within that time."""
        with trio.move_on_after(seconds):
            await self._arrivals.receive()
            raise CheckFailed("it connected again")

    async def greet(self, peer: Peer, *, present: bool | None = None, **welcome: Any) -> Hello:
        """Answers HELLO: the session is there if it is named, or as ``present`` says."""
        hello = await peer.expect(Hello, ())
        if present is None:
            present = hello.session_id is not None
        if hello.session_id is not None:
            named = (hello.session_id, hello.resume_token)
            require(named == (SESSION, TOKEN), f"HELLO names {named}, which WELCOME never said")
        if present:
            peer.connection.know_streams(self.streams)
        elif hello.session_id is not None:
            self.last_sequence_id = self.streams = 0
            welcome.setdefault("session_id", f"{SESSION}-again")
        self.epoch += 1
        facts: dict[str, Any] = {
            "epoch": self.epoch,
            "session_present": present,
            "last_sequence_id": self.last_sequence_id,
            "minor_version": 0,
            "capabilities": agreed_capabilities(hello.capabilities, self.capabilities),
        }
        await peer.say(evolve(_WELCOME, **(facts | welcome)))
        return hello

    async def greeted(self, **welcome: Any) -> Peer:
        """Waits for the client's next connection, upgrades and greets it."""
        peer = await self.arrival()
        await self.greet(peer, **welcome)
        return peer

    async def accept(self, peer: Peer, durability: Durability = Durability.COMMITTED) -> Submit:
        """Takes the next SUBMIT and accepts it on the next stream."""
        submit = await peer.expect(Submit)
        self.last_sequence_id = max(self.last_sequence_id, submit.sequence_id)
        self.streams += 1
        await peer.say(
            Accepted(sequence_id=submit.sequence_id, stream_id=self.streams, durability=durability)
        )
        return submit

    async def anew(self) -> None:
        """Has the client drop what it has, and forgets the session."""
        await self.subject.ask("reset")
        self.last_sequence_id = self.streams = self.epoch = 0

    async def begun(self, stream: str = "a", durability: Durability = Durability.COMMITTED) -> Peer:
        """A fresh client with one stream, which this server has accepted under number 1."""
        await self.connect()
        submitting = self.start("submit", stream=stream, prompt="Hello", durability=durability.value)
        peer = await self.greeted()
        await self.accept(peer, durability)
        await submitting.result()
        return peer

    async def text(self, stream: str = "a") -> str:
        """Has the client read a stream to its end; returns the text."""
        read = await self.subject.ask("read", stream=stream)
        require(read.get("finish_reason"), f"the stream ended, it says {read}")
        return str(read.get("text"))


@asynccontextmanager
async def client_stage(subject: Subject, subprotocol: str) -> AsyncIterator[ClientStage]:
    """A server on a free port of the loopback interface, for one check; its connections end with it."""
    sender, receiver = trio.open_memory_channel[trio.SocketStream](64)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]

    async def take(stream: trio.SocketStream) -> None:
        await sender.send(stream)
        await trio.sleep_forever()  # returning would close it

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, take, [listener])
        stage = ClientStage(subject, subprotocol, port, receiver)
        stage._nursery = nursery  # noqa: SLF001 - its own maker
        nursery.start_soon(subject.watch)
        yield stage
        nursery.cancel_scope.cancel()

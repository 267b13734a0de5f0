"""A small client for the server's tests: the wire's client role over a WebSocket over any stream."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from seedance_wire.connection import Connection
from seedance_wire.cursor import ReceiveCursor
from seedance_wire.messages import (
    Accepted,
    Ack,
    Cancel,
    ChatMessage,
    Checkpoint,
    Delta,
    Error,
    Flush,
    Frame,
    Hello,
    Message,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Sampling,
    Submit,
    Welcome,
)
from seedance_wire.running_digest import RunningDigest
from seedance_wire.state import Role

KEY = b"0123456789abcdef"


class WireClient:
    """Sends and receives messages; acknowledges frames unless told not to."""

    welcome: Welcome

    def __init__(
        self, websocket: WebSocketConnection, subprotocol: str, capabilities: Sequence[str] | None = None
    ) -> None:
        self.websocket = websocket
        self.connection = Connection(Role.CLIENT, subprotocol)
        self.capabilities = self.connection.capabilities if capabilities is None else tuple(capabilities)
        self.acks = True
        self._taken: dict[int, int] = {}
        self.checkpoints: list[Checkpoint] = []
        self.messages = 0  # WebSocket messages received

    async def send(self, message: Message) -> None:
        await self.websocket.send_message(self.connection.send(message))

    async def receive(self) -> Message:
        """The next message that is no CHECKPOINT; those are kept apart."""
        while isinstance(event := await self.receive_any(), Checkpoint):
            self.checkpoints.append(event)
        return event

    async def receive_any(self) -> Message:
        while (event := self.connection.next_event()) is None:
            if self._taken:  # one message for all frames that came together, as clients must
                # A server that has closed wants no ack, but what it said before is still to be read.
                with suppress(ConnectionClosed):
                    await self.send(Ack(processed=tuple(self._taken.items())))
                self._taken = {}
            self.connection.receive_data(await self.websocket.get_message())
            self.messages += 1
        if self.acks and isinstance(event, Delta | Flush):
            self._taken[event.stream_id] = event.id
        return event

    async def hello(self, former: Welcome | None = None, known: int = 1) -> Welcome:
        """Says HELLO; with a former WELCOME to come back to its session, where so many streams are."""
        if former is None:
            await self.send(Hello(sdk_name="test", capabilities=self.capabilities))
        else:
            self.connection.know_streams(known)
            await self.send(
                Hello(
                    session_id=former.session_id,
                    resume_token=former.resume_token,
                    capabilities=self.capabilities,
                )
            )
        welcome = await self.receive()
        assert isinstance(welcome, Welcome)
        self.welcome = welcome
        return welcome

    async def resume(self, stream_id: int, taken: Sequence[Frame] = (), **more: object) -> Message:
        """Asks for what follows the frames taken on earlier connections; returns the answer."""
        text = "".join(frame.text for frame in taken if isinstance(frame, Delta)).encode()
        last_id = more.pop("last_processed_id", taken[-1].id if taken else 0)
        assert isinstance(last_id, int)
        cursor = ReceiveCursor(epoch=1, applied=last_id, applied_bytes=len(text))
        digest = RunningDigest()
        digest.update(text)
        self.connection.know_position(stream_id, cursor, digest)
        await self.send(Resume(stream_id=stream_id, last_processed_id=last_id, **more))
        while not isinstance(answer := await self.receive(), Resumed | ResumeRejected):
            pass
        return answer

    async def frames(self, count: int | None = None) -> list[Frame]:
        """Reads frames of the one stream that runs: so many, or all to its end."""
        frames: list[Frame] = []
        while len(frames) != count:
            event = await self.receive()
            if isinstance(event, Delta | Flush | Error):
                frames.append(event)
                if isinstance(event, Error) or (isinstance(event, Flush) and event.final is not None):
                    break
        return frames

    async def submit(self, text: str = "Hi", **more: object) -> int:
        """Submits a chat request; returns its sequence id."""
        sequence_id = self.connection.next_sequence_id
        if not {"prompt", "token_ids", "messages"} & more.keys():
            more["messages"] = (ChatMessage(role="user", content=text),)
        if isinstance(more.get("sampling"), dict):
            more["sampling"] = Sampling(**more["sampling"])
        more.setdefault("idempotency_key", secrets.token_bytes(16))
        await self.send(Submit(sequence_id=sequence_id, **more))
        return sequence_id

    async def cancel(self, stream_id: int) -> None:
        await self.send(Cancel(sequence_id=self.connection.next_sequence_id, stream_id=stream_id))

    async def accepted(self) -> int:
        """Waits for ACCEPTED; returns the stream's id."""
        accepted = await self.receive()
        assert isinstance(accepted, Accepted), accepted
        return accepted.stream_id

    async def refused(self) -> Refused:
        refused = await self.receive()
        assert isinstance(refused, Refused), refused
        return refused

    async def until_end(self) -> tuple[str, Flush | Error]:
        """Reads one stream, the only one running, to its terminal frame."""
        text = ""
        while True:
            event = await self.receive()
            if isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Error) or (isinstance(event, Flush) and event.final is not None):
                return text, event

    async def close_code(self) -> int:
        """Reads until the server closes; returns its close code."""
        try:
            while True:
                await self.websocket.get_message()
        except ConnectionClosed as closed:
            return closed.reason.code


@asynccontextmanager
async def wire_client(
    stream: trio.abc.Stream,
    subprotocol: str = "seedance.v1",
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    hello: bool = True,
    former: Welcome | None = None,
    known: int = 1,
    target: str = "/v1/chat",
    capabilities: Sequence[str] | None = None,
) -> AsyncIterator[WireClient]:
    """Upgrades `stream` and says HELLO, as who was welcomed before if given; leaving the block cuts it.

    It offers these capabilities, or all.
    """
    async with trio.open_nursery() as nursery:
        websocket = await wrap_client_stream(
            nursery, stream, "localhost", target, subprotocols=[subprotocol], extra_headers=headers
        )
        client = WireClient(websocket, subprotocol, capabilities)
        if hello:
            await client.hello(former, known)
        yield client
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


async def http(stream: trio.abc.Stream, request: bytes) -> bytes:
    """Sends raw bytes, reads to the end and closes."""
    await stream.send_all(request)
    answer = b""
    while data := await stream.receive_some():
        answer += data
    await stream.aclose()
    return answer

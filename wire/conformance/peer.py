"""The other end that an implementation under test talks to: whole messages over a WebSocket that can be cut.

What it hears is held against the rules of the protocol (`seedance_wire.connection`), whatever a check looks
for; what it says may break them. It must not know which implementation it talks to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from seedance_wire.connection import Connection
from seedance_wire.envelope import Gap, InvalidSubmit
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import Ack, Checkpoint, Delta, Error, Flow, Flush, Message, Status

__all__ = ["ALONGSIDE", "CheckFailed", "Closed", "CutStream", "Peer", "is_last", "require", "text_of"]

M = TypeVar("M", bound=Message)

ALONGSIDE: tuple[type, ...] = (Ack, Checkpoint, Flow, Status)
"""What may come at any moment, and is passed over unless a check asks for it."""


class CheckFailed(Exception):  # noqa: N818 - what happened
    """The implementation did what it must not, or not what it must."""


class Closed(CheckFailed):
    """The WebSocket was closed; ``code`` says how."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(f"it closed with {code}{f' ({reason})' if reason else ''}")


def require(condition: object, otherwise: str) -> None:
    """Fails the check unless the condition holds.

    Raises:
        CheckFailed: It does not.
    """
    if not condition:
        raise CheckFailed(otherwise)


class CutStream(trio.abc.Stream):
    """A stream that is torn down once so many bytes of its owner's have been sent, or received.

    Args:
        stream: The stream.
        send_bytes: Cut after that many were sent; None for never.
        receive_bytes: The same for those received.

    Attributes:
        ended: Set once nothing more can come.
    """

    def __init__(
        self, stream: trio.SocketStream, send_bytes: int | None = None, receive_bytes: int | None = None
    ) -> None:
        self._stream = stream
        self._to_send = send_bytes
        self._to_receive = receive_bytes
        self.ended = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`."""
        if self._to_send is None:
            return await self._stream.send_all(data)
        passing = bytes(data)[: self._to_send]
        self._to_send -= len(passing)
        await self._stream.send_all(passing)
        if not self._to_send:
            await self.aclose()
            raise trio.BrokenResourceError
        return None

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream`."""
        if self._to_receive is None:
            data = bytes(await self._stream.receive_some(max_bytes))
            if not data:
                self.ended.set()
            return data
        data = bytes(await self._stream.receive_some(min(max_bytes or 65_536, max(self._to_receive, 1))))
        self._to_receive -= len(data)
        if self._to_receive <= 0:
            await self.aclose()
            raise trio.BrokenResourceError
        return data

    async def aclose(self) -> None:
        """See `trio.abc.AsyncResource`."""
        self.ended.set()
        await self._stream.aclose()


class Peer:
    """One WebSocket connection, as the runner's end of it.

    Args:
        websocket: The connection.
        connection: The rules.
        stream: What it runs over.
    """

    def __init__(
        self, websocket: WebSocketConnection, connection: Connection, stream: trio.abc.Stream
    ) -> None:
        self.websocket = websocket
        self.connection = connection
        self._stream = stream

    async def say(self, *messages: Message) -> None:
        """Sends one envelope that the rules allow."""
        await self.say_raw(self.connection.send(*messages))

    async def say_raw(self, payload: bytes | str) -> None:
        """Sends one WebSocket message, whatever it is.

        Raises:
            Closed: The WebSocket is closed.
        """
        try:
            await self.websocket.send_message(payload)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def hear(self) -> Message | InvalidSubmit:
        """Returns the next message.

        Raises:
            Closed: The WebSocket was closed instead.
            CheckFailed: What came breaks the rules.
        """
        while (event := self.connection.next_event()) is None:
            try:
                data = await self.websocket.get_message()
            except ConnectionClosed as closed:
                raise _closed(closed) from None
            try:
                self.connection.receive_data(data)
            except RemoteProtocolError as error:
                raise CheckFailed(f"it broke the protocol: {error}") from None
        if isinstance(event, Gap):
            raise CheckFailed(
                f"frame {event.frame_id} of stream {event.stream_id} came, which does not follow"
            )
        return event

    async def expect(self, kind: type[M], passing: Sequence[type] = ALONGSIDE) -> M:
        """Returns the next message of this kind; nothing but ``passing`` may come before.

        Raises:
            CheckFailed: Something else came.
        """
        while True:
            event = await self.hear()
            if isinstance(event, kind):
                return event
            if not isinstance(event, tuple(passing)):
                raise CheckFailed(f"{kind.__name__} was due, {type(event).__name__} came: {_short(event)}")

    async def answers_ping(self, payload: bytes) -> None:
        """Pings, and fails the check unless the pong that RFC 6455 demands comes with the same bytes."""
        with trio.move_on_after(2) as patience:
            await self.websocket.ping(payload)
        require(not patience.cancelled_caught, "no pong came")

    async def closed(self) -> int:
        """Reads until the WebSocket is closed; returns the close code."""
        while True:
            try:
                await self.websocket.get_message()
            except ConnectionClosed as closed:
                return _closed(closed).code

    async def close(self, code: int = 1000) -> None:
        """Closes the WebSocket."""
        await self.websocket.aclose(code)

    async def cut(self) -> None:
        """Tears the connection down without a word."""
        await trio.aclose_forcefully(self._stream)


def text_of(frames: Sequence[Delta | Flush | Error]) -> str:
    """The text of frames."""
    return "".join(frame.text for frame in frames if isinstance(frame, Delta))


def is_last(frame: object) -> bool:
    """Whether a stream ends with this."""
    return isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)


def _closed(closed: ConnectionClosed) -> Closed:
    return (
        Closed(1006, "") if closed.reason is None else Closed(closed.reason.code, closed.reason.reason or "")
    )


def _short(event: Any) -> str:
    return str(event)[:300]

"""A connection without a network: two bounded queues of whole messages, and why they were closed.

The client's end is a `Transport` like any other; the server's end are the channels themselves. Test doubles
are built on it. Must not know what a message means.
"""

from __future__ import annotations

import trio
from attrs import frozen

from seedance_sdk.causes import error_of_close

__all__ = ["MemoryTransport", "MemoryWire"]

_QUEUE_SIZE = 8
"""Messages on their way each way; picked, about what a socket's buffers hold of large ones."""


class MemoryWire:
    """One connection.

    Attributes:
        to_server: Where the client puts messages.
        at_server: Where the server takes them; ends when the client closes.
        to_client: Where the server puts messages.
        at_client: Where the client takes them.
        close_code: What the server closed it with.
        close_reason: And why, in its words.
        client_close_code: What the client closed it with, or None while it has not.
        answers_pings: Whether the server is alive; set it to False for one that hangs.
        pings: Payloads of those that came.
    """

    def __init__(self) -> None:
        self.to_server, self.at_server = trio.open_memory_channel[bytes | str](_QUEUE_SIZE)
        self.to_client, self.at_client = trio.open_memory_channel[bytes | str](_QUEUE_SIZE)
        self.close_code = 1006
        self.close_reason = ""
        self.client_close_code: int | None = None
        self.answers_pings = True
        self.pings: list[bytes] = []

    def close(self, code: int = 1006, reason: str = "") -> None:
        """Closes it from the server's side; the client still gets what is on its way."""
        self.close_code = code
        self.close_reason = reason
        self.to_client.close()
        self.at_server.close()


@frozen
class MemoryTransport:
    """The client's end; see `seedance_sdk.transport.Transport`."""

    wire: MemoryWire
    alpn_matched: None = None  # there is no TLS

    async def send(self, data: bytes | str) -> None:
        """Sends one message; waits while the queue is full."""
        try:
            await self.wire.to_server.send(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise error_of_close(self.wire.close_code, self.wire.close_reason) from None

    async def receive(self) -> bytes | str:
        """Returns the next message."""
        try:
            return await self.wire.at_client.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise error_of_close(self.wire.close_code, self.wire.close_reason) from None

    async def ping(self, payload: bytes) -> None:
        """Is answered at once, or never."""
        await trio.lowlevel.checkpoint()
        self.wire.pings.append(payload)
        if not self.wire.answers_pings:
            await trio.sleep_forever()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Closes it from the client's side."""
        del reason  # nobody reads it here
        if self.wire.client_close_code is None:
            self.wire.client_close_code = code
        self.wire.to_server.close()
        self.wire.at_client.close()
        await trio.lowlevel.checkpoint()

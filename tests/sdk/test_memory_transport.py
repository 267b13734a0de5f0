"""The connection without a network behaves as one with a network."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from seedance_sdk.errors import ConnectionLost, Overloaded
from seedance_sdk.memory_transport import MemoryTransport, MemoryWire


async def test_memory_transport_carries_messages_both_ways() -> None:
    """What goes in comes out, in order."""
    wire = MemoryWire()
    transport = MemoryTransport(wire)
    await transport.send(b"a")
    await transport.send("b")
    assert [await wire.at_server.receive() for _ in range(2)] == [b"a", "b"]
    await wire.to_client.send(b"c")
    assert await transport.receive() == b"c"


async def test_memory_transport_delivers_what_was_sent_before_the_close() -> None:
    """The close code comes after the last message, as on a socket."""
    wire = MemoryWire()
    transport = MemoryTransport(wire)
    await wire.to_client.send(b"last")
    wire.close(1013, "busy")
    assert await transport.receive() == b"last"
    with pytest.raises(Overloaded, match="busy"):
        await transport.receive()
    with pytest.raises(Overloaded):
        await transport.send(b"x")


async def test_memory_transport_is_bounded() -> None:
    """A server that does not read stalls the sender, as a socket would."""
    transport = MemoryTransport(MemoryWire())
    with trio.move_on_after(0.01) as scope:
        for _ in range(100):
            await transport.send(b"x")
    assert scope.cancelled_caught


async def test_memory_transport_tells_the_server_that_the_client_closed() -> None:
    """The server's loop ends, and knows the code."""
    wire = MemoryWire()
    transport = MemoryTransport(wire)
    await transport.aclose(4400)
    await transport.aclose()
    assert wire.client_close_code == 4400
    assert [message async for message in wire.at_server] == []
    with pytest.raises(ConnectionLost):
        await transport.send(b"x")

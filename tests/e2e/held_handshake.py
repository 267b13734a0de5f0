"""A relay that holds a TLS client's handshake back behind its early data.

Whether a server has a request before it has the end of the handshake is a matter of luck on loopback, and
that is what decides about early data: behind this relay it always has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

__all__ = ["relay_early_data"]

_HEADER = 5
_APPLICATION_DATA = 23


async def _read_record(stream: trio.SocketStream, pending: bytes) -> tuple[bytes, bytes]:
    """The next record (RFC 8446, section 5.1), and what was read beyond it."""
    while len(pending) < _HEADER or len(pending) < _HEADER + int.from_bytes(pending[3:_HEADER], "big"):
        received = await stream.receive_some()
        assert received, "the client went before its early data was whole"
        pending += received
    end = _HEADER + int.from_bytes(pending[3:_HEADER], "big")
    return pending[:end], pending[end:]


async def relay_early_data(
    client: trio.SocketStream, port: int, answered: Callable[[], Awaitable[None]]
) -> None:
    """Passes one connection on; what follows the first record of early data waits.

    Args:
        client: The accepted connection of a client that sends early data.
        port: Of the server, on loopback.
        answered: Returns once the server has dealt with the early data.
    """
    async with (
        client,
        await trio.open_tcp_stream("127.0.0.1", port) as server,
        trio.open_nursery() as nursery,
    ):

        async def pass_answers() -> None:
            with suppress(trio.BrokenResourceError):  # a client said goodbye to a server that had gone
                async for received in server:
                    await client.send_all(received)
            nursery.cancel_scope.cancel()

        nursery.start_soon(pass_answers)
        record, rest = await _read_record(client, b"")
        await server.send_all(record)
        while record[0] != _APPLICATION_DATA:
            record, rest = await _read_record(client, rest)
            await server.send_all(record)
        await answered()
        with suppress(trio.BrokenResourceError):
            await server.send_all(rest)
            async for received in client:
                await server.send_all(received)

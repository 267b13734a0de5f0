"""The proxy that harms connections: every harm at the byte where it was asked for, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.fault_proxy import FaultProxy, Harm, HarmKind, Plan, tcp_proxy

MESSAGE = bytes(range(256)) * 40


@asynccontextmanager
async def joined(plan: Plan) -> AsyncIterator[tuple[trio.abc.Stream, trio.abc.Stream, FaultProxy]]:
    """A client's end, the server's end and the proxy between them, on memory streams."""
    client, proxy_client = trio.testing.memory_stream_pair()
    server, proxy_server = trio.testing.memory_stream_pair()

    async def connect() -> trio.abc.Stream:
        return proxy_server

    proxy = FaultProxy(connect, lambda _number: plan)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.handle, proxy_client)
        yield client, server, proxy
        nursery.cancel_scope.cancel()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    while data := await stream.receive_some(1_000):
        received += data
    return received


async def send_quietly(stream: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)


@pytest.mark.parametrize("upward", [True, False])
@pytest.mark.parametrize("kind", [HarmKind.CUT, HarmKind.HALF_CLOSE])
@pytest.mark.parametrize("after", [0, 1, 4_095, 4_096, 4_097, len(MESSAGE) - 1])
async def test_proxy_lets_exactly_the_asked_bytes_through_when_it_cuts(
    upward: bool, kind: HarmKind, after: int
):
    """A fault is at one byte, so that every byte of an exchange can be tried."""
    harms = (Harm(kind, after),)
    plan = Plan(up=harms) if upward else Plan(down=harms)
    async with joined(plan) as (client, server, proxy):
        source, target = (client, server) if upward else (server, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_quietly, source, MESSAGE)
            assert await read_all(target) == MESSAGE[:after]
            nursery.cancel_scope.cancel()
        assert proxy.counts == {kind: 1}
        if kind is HarmKind.CUT:
            assert await source.receive_some(1) == b""
        else:
            await target.send_all(b"back")
            assert await source.receive_some(10) == b"back"


@given(parts=st.lists(st.binary(min_size=1, max_size=50), max_size=8), after=st.none() | st.integers(0, 200))
def test_proxy_passes_bytes_unchanged_in_any_chunking(parts: list[bytes], after: int | None):
    """Without a harm, and before one, the proxy is not there."""

    async def main() -> None:
        plan = Plan() if after is None else Plan(up=(Harm(HarmKind.CUT, after),))
        async with joined(plan) as (client, server, _proxy), trio.open_nursery() as nursery:

            async def send() -> None:
                for part in parts:
                    await send_quietly(client, part)
                with trio.CancelScope(shield=True):
                    await client.aclose()

            nursery.start_soon(send)
            assert await read_all(server) == b"".join(parts)[:after]

    trio.run(main)


async def test_proxy_holds_bytes_back_while_stalled(autojump_clock: trio.testing.MockClock):
    """A stalled way looks alive and says nothing; the other way goes on."""
    async with joined(Plan(down=(Harm(HarmKind.STALL, 2),))) as (client, server, proxy):
        await server.send_all(b"abcd")
        assert await client.receive_some(10) == b"ab"
        with trio.move_on_after(1_000) as patience:
            await client.receive_some(10)
        assert patience.cancelled_caught
        await client.send_all(b"up")
        assert await server.receive_some(10) == b"up"
        (connection,) = proxy.connections
        connection.down.release()
        assert await client.receive_some(10) == b"cd"


async def test_proxy_delays_each_piece_by_as_much_as_asked(autojump_clock: trio.testing.MockClock):
    """A slow way is late, and complete."""
    async with joined(Plan(up=(Harm(HarmKind.DELAY, 0, delay_s=2.0),))) as (client, server, _proxy):
        started = trio.current_time()
        await client.send_all(b"a")
        assert await server.receive_some(1) == b"a"
        assert trio.current_time() - started == pytest.approx(2.0)


async def test_proxy_cuts_a_running_connection_now():
    """A cut needs no plan."""
    async with joined(Plan()) as (client, server, proxy):
        await client.send_all(b"a")
        assert await server.receive_some(1) == b"a"
        assert proxy.cut_all() == 1
        assert await client.receive_some(1) == await server.receive_some(1) == b""
        assert proxy.faults == 1
    assert not proxy.connections


async def test_proxy_over_tcp_resets_refuses_and_misses_the_server():
    """On sockets a reset is a reset; a refused client and an absent server end the connection at once."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        plans = [Plan(), Plan(refused=True), Plan()]
        proxy = tcp_proxy(listener.socket.getsockname()[1], plans.__getitem__)
        port = await nursery.start(proxy.serve)

        client = await trio.open_tcp_stream("127.0.0.1", port)
        server = await listener.accept()
        await client.send_all(b"a")
        assert await server.receive_some(1) == b"a"
        proxy.cut_all(HarmKind.RESET)
        for end in (client, server):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some(1)
            await end.aclose()

        await listener.aclose()
        for _ in range(2):
            async with await trio.open_tcp_stream("127.0.0.1", port) as turned_away:
                assert await turned_away.receive_some(1) == b""
        assert (proxy.refused, proxy.unreachable, proxy.made) == (1, 1, 3)
        nursery.cancel_scope.cancel()

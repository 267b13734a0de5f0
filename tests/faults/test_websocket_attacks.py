"""What one unauthenticated connection may send, and that it only ever costs that connection.

Each input here has ended a server built on trio-websocket 0.12.2 alone, or made it wait or buffer without
bound. The versions are asserted with the inputs: an upgrade is a decision, made with this file at hand.
"""

from __future__ import annotations

import importlib.metadata
import tracemalloc
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seedance_server.websockets
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.compression import longest_packed
from tests.compression_bombs import BOMBS
from tests.server.attacks import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    UPGRADE,
    frame,
    message_bytes,
    raw_websocket,
    read_close_code,
    read_head,
    read_to_end,
    submit_bytes,
)
from tests.server.wire_client import http, wire_client

OVERSIZE = frame(BINARY, b"\0" * 262_145)
OVERSIZE_FOR_ALL = frame(BINARY, b"\0" * (longest_packed(262_144) + 1))  # the library itself refuses it


@pytest.mark.parametrize(
    ("package", "version"), [("trio-websocket", "0.12.2"), ("wsproto", "1.3.2"), ("h11", "0.16.0")]
)
def test_libraries_are_the_ones_these_attacks_were_tried_on(package: str, version: str) -> None:
    """The guard is tested against these releases' own crash inputs."""
    assert importlib.metadata.version(package) == version


@asynccontextmanager
async def surviving(**more):
    """A server that must serve a stranger and a neighbour to the end, whatever the block does to it."""
    engine = ScriptedEngine(lambda request: ["x"] * (60 if request.prompt_ids == (ord("n"),) else 3))
    async with serve_in_memory(engine, **more) as server, wire_client(server.connect()) as neighbour:
        await neighbour.submit(prompt="n")
        await neighbour.accepted()
        await neighbour.receive()
        yield server
        async with wire_client(server.connect()) as stranger:
            await stranger.submit()
            await stranger.accepted()
            assert (await stranger.until_end())[0] == "xxx"
        with trio.fail_after(60):
            text, end = await neighbour.until_end()
        assert len(text) == 59
        assert end.final is not None
        await trio.sleep(5)
        assert server.door.statistics().websockets == 1
        assert server.door.statistics().lobby == 0
        assert engine.active == ()


async def times_taken(stream: trio.abc.SendStream, data: bytes, *, pause_s: float = 0.01) -> int:
    """Sends `data` again and again; returns how often it was taken before the connection was cut."""
    for count in range(1000):
        try:
            await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return count
        await trio.sleep(pause_s)
    return 1000


def with_header(name: bytes, value: bytes) -> bytes:
    lines = [line for line in UPGRADE.split(b"\r\n") if not line.lower().startswith(name.lower() + b":")]
    return b"\r\n".join([lines[0], name + b": " + value, *lines[1:]])


@pytest.mark.parametrize(
    "name", [b"Host", b"Connection", b"Sec-WebSocket-Protocol", b"Sec-WebSocket-Extensions", b"X-Any"]
)
@pytest.mark.parametrize("value", [b"\xff\xfe", "✓".encode(), b"upgrade, \x80"])
async def test_headers_beyond_ascii_are_refused(autojump_clock, name: bytes, value: bytes) -> None:
    """The library decodes some of them and dies; ours answers 400 before it sees them."""
    async with surviving() as server:
        answer = await http(server.connect(), with_header(name, value))
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "host", [b"xn--zzzzzzz99999", b"xn--", b".", b"a" * 300, b"[", b"a:b:c", b"%00", b"localhost:99999999"]
)
async def test_odd_hosts_are_taken_or_refused_but_end_nothing(autojump_clock, host: bytes) -> None:
    """The library IDNA-decodes Host and dies of some."""
    async with surviving() as server:
        stream = server.connect()
        await stream.send_all(with_header(b"Host", host))
        assert (await read_head(stream))[:12] in {b"HTTP/1.1 101", b"HTTP/1.1 400"}
        await stream.aclose()


async def test_a_crash_of_the_library_is_contained(autojump_clock, monkeypatch) -> None:
    """Were a bad header ever to reach the library again, it would end that connection only."""
    monkeypatch.setattr(
        seedance_server.websockets, "canonical_head", lambda _upgrade: with_header(b"Host", b"\xff\xfe")
    )
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(UPGRADE)
        assert await read_to_end(stream) == 0
        assert server.door.statistics().contained == 1
        monkeypatch.undo()
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()


@pytest.mark.parametrize(
    "segment",
    [
        OVERSIZE_FOR_ALL + frame(PING, b"x"),
        OVERSIZE_FOR_ALL + OVERSIZE_FOR_ALL,
        OVERSIZE_FOR_ALL + frame(CLOSE, b"\x03\xe8"),
        OVERSIZE_FOR_ALL,
        OVERSIZE,
        frame(BINARY, b"\0" * 200_000, fin=False) + frame(0, b"\0" * 200_000, fin=False) + frame(PING),
    ],
    ids=["with a ping", "twice", "with a close", "alone", "by a byte", "in fragments"],
)
async def test_oversize_messages_get_1009_and_the_connection_closes(autojump_clock, segment: bytes) -> None:
    """One byte over the limit: close code, then the transport closes within three seconds."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        began_s = trio.current_time()
        await stream.send_all(segment)
        assert await read_close_code(stream) == 1009
        await read_to_end(stream)
        assert trio.current_time() - began_s <= 3


async def test_a_message_at_the_limit_is_taken(autojump_clock) -> None:
    """The limit itself is allowed; what it holds is judged as usual."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(frame(BINARY, b"\0" * 262_144))
        assert await read_close_code(stream) == 4400


async def test_a_ping_while_the_server_closes_ends_nothing(autojump_clock) -> None:
    """The library answers a ping after its own close frame and dies (trio-websocket#184)."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(frame(BINARY, b"\xff\xff"))  # a violation: the server closes
        assert await read_close_code(stream) == 4400
        began_s = trio.current_time()
        await stream.send_all(frame(PING, b"x") * 10)
        await read_to_end(stream)
        assert trio.current_time() - began_s <= 3


@pytest.mark.parametrize(
    "flood",
    [frame(PING, b"x" * 100), frame(0, b"", fin=False), frame(0, b"", fin=True, masked=True)[:2]],
    ids=["pings", "empty fragments", "broken frames"],
)
async def test_floods_between_messages_are_cut(autojump_clock, flood: bytes) -> None:
    """Pings and empty fragments cost the peer its budget, since no message ever completes."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(frame(TEXT, b"", fin=False))
        assert await times_taken(stream, flood * 1000) < 1000


async def test_a_head_without_an_end_is_cut_after_16_kib(autojump_clock) -> None:
    """However much is sent, no more than the limit is read."""
    async with surviving() as server:
        stream = server.connect()
        await stream.send_all(b"GET /v1/chat HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 1_000_000)
        assert (await read_head(stream)).startswith(b"HTTP/1.1 431 ")


async def test_a_flood_behind_the_upgrade_is_cut(autojump_clock) -> None:
    """Bytes sent before the upgrade is answered are bounded too."""
    async with surviving() as server:
        stream = server.connect()
        await stream.send_all(UPGRADE)
        assert await times_taken(stream, b"\x82" + b"\0" * 65_535) < 1000


@pytest.mark.parametrize("sent", [b"", b"G", UPGRADE[:-2]])
async def test_a_slow_handshake_is_cut_after_five_seconds(autojump_clock, sent: bytes) -> None:
    """A drip of a byte a second holds its place for five seconds, not sixty."""
    async with surviving() as server:
        stream = server.connect()
        began_s = trio.current_time()
        await stream.send_all(sent)
        with trio.move_on_after(30):
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def drip() -> None:
                    while True:
                        await trio.sleep(1)
                        await stream.send_all(b"x")

                head = await read_head(stream)
                nursery.cancel_scope.cancel()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - began_s <= 6


async def test_five_hundred_drips_do_not_keep_a_good_client_out(autojump_clock) -> None:
    """The oldest give way; whoever comes is served at once."""
    async with surviving() as server:
        drips = []
        for _ in range(500):
            await server.door.lobby.wait_for_room()
            drips.append(server.connect())
        began_s = trio.current_time()
        await server.door.lobby.wait_for_room()
        async with wire_client(server.connect()):
            assert trio.current_time() - began_s <= 0.25
        await trio.sleep(6)
        for drip in drips:
            await read_to_end(drip)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x", masked=False), 1002),
        (bytes([0xF2]) + frame(BINARY)[1:], 1002),
        (frame(3, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, b"x", fin=False), 1002),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(0, b"x"), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, b"\x03\xed"), 1002),
    ],
    ids=["unmasked", "reserved", "opcode", "long ping", "cut ping", "utf-8", "no start", "half code", "1005"],
)
async def test_broken_framing_closes_the_connection(autojump_clock, data: bytes, code: int) -> None:
    """What RFC 6455 forbids ends the connection at once; the library doesn't always say the code before."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(data)
        assert await read_close_code(stream) in {code, None}
        with trio.fail_after(3):
            await read_to_end(stream)


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 3000, 4999, None])
@pytest.mark.parametrize("reason", [b"", b"r" * 123])
async def test_every_close_is_answered_and_frees_everything(autojump_clock, code, reason: bytes) -> None:
    """Each code, with and without a reason, while a stream runs."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(submit_bytes(1, "n"))
        payload = b"" if code is None else code.to_bytes(2, "big") + reason
        await stream.send_all(frame(CLOSE, payload))
        assert await read_close_code(stream) == (code or 1005)
        with trio.fail_after(3):
            await read_to_end(stream)


async def test_a_peer_that_ignores_the_close_is_cut(autojump_clock) -> None:
    """Neither a close frame nor an end in answer: the wait is bounded."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(frame(BINARY, b"\xff\xff"))
        began_s = trio.current_time()
        await read_to_end(stream)
        assert trio.current_time() - began_s <= 4


async def test_a_peer_that_reads_nothing_and_pings_is_cut(autojump_clock) -> None:
    """The library's pongs, data and close share one lock; a stalled peer holds it for ten seconds at most."""
    async with surviving() as server:
        stream = await raw_websocket(server.connect_lockstep())
        await stream.send_all(submit_bytes(1, "n"))
        began_s = trio.current_time()
        assert await times_taken(stream, frame(PING, b"x"), pause_s=0.5) < 1000
        assert trio.current_time() - began_s <= 15


@pytest.mark.parametrize("size", [1, 10, len(UPGRADE) - 1])
async def test_dying_during_the_upgrade_leaves_nothing(autojump_clock, size: int) -> None:
    """Cut at any byte of the handshake."""
    async with surviving() as server:
        stream = server.connect()
        await stream.send_all(UPGRADE[:size])
        await stream.aclose()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                frame,
                st.integers(0, 15),
                st.binary(max_size=200),
                fin=st.booleans(),
                masked=st.booleans(),
            ),
            st.sampled_from([submit_bytes(1), submit_bytes(2), submit_bytes(3)]),
        ),
        max_size=12,
    ),
    st.integers(1, 64),
)
def test_arbitrary_frames_only_ever_cost_their_own_connection(pieces: list[bytes], chunk: int) -> None:
    """Nothing that a peer sends after the upgrade is our bug: no crash, no task, no sequence left."""

    async def run() -> None:
        engine = ScriptedEngine(["x"] * 50)
        async with serve_in_memory(engine) as server:
            stream = await raw_websocket(server.connect())
            data = b"".join(pieces)
            try:
                for start in range(0, len(data), chunk * 16):
                    await stream.send_all(data[start : start + chunk * 16])
                    await trio.sleep(0.001)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.sleep(1)
            await trio.aclose_forcefully(stream)
            await trio.sleep(10)
            assert engine.active == ()
            assert server.door.statistics().websockets == 0
            assert server.engine_loop.failure is None
            async with wire_client(server.connect()) as client:
                await client.submit(sampling={"max_tokens": 1})
                await client.accepted()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_attack_bytes_are_what_they_claim() -> None:
    """The helpers build what the protocol would: else these tests attack nothing."""
    assert message_bytes.__doc__
    assert frame(BINARY, b"ab") == b"\x82\x82\0\0\0\0ab"
    assert len(OVERSIZE) == 262_145 + 14


@pytest.mark.parametrize("bomb", BOMBS)
async def test_bomb_closes_its_own_connection_and_costs_no_memory(autojump_clock, bomb: str) -> None:
    """A message that unfolds to more than it may: refused with its code, others go on."""
    data, code = BOMBS[bomb]
    async with surviving() as server, wire_client(server.connect()) as attacker:
        tracemalloc.start()
        await attacker.websocket.send_message(data)
        assert await attacker.close_code() == code
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()


async def test_bomb_is_bytes_to_who_agreed_on_no_compression(autojump_clock) -> None:
    """Nothing is unfolded for a client that did not offer it."""
    async with surviving() as server, wire_client(server.connect(), capabilities=()) as attacker:
        await attacker.websocket.send_message(BOMBS["64 MiB in a narrow window"][0])
        assert await attacker.close_code() == 4400

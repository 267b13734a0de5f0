"""A server that lies, floods or talks nonsense ends its own connection and nothing else of the client's."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import trio
import trio.testing
from attrs import evolve

from seedance_sdk.errors import ConnectFailed, ConnectionFailed, Diverged, ProtocolError
from seedance_sdk.limits import Limits
from seedance_sdk.reconnect import Reaction, reaction_to
from seedance_wire.compression import longest_packed
from seedance_wire.errors import CloseCode
from seedance_wire.messages import Durability, Hello
from tests.compression_bombs import BOMBS
from tests.sdk.hand_server import FOREVER, HandServer, asked, begin, delta, final, opened, running
from tests.sdk.raw_server import BINARY, CLOSE, PING, PONG, TEXT, RawServer, connected, frame

SMALL = Limits(max_message_bytes=1000)
LONGEST = longest_packed(1000)

GARBAGE = [
    pytest.param(b"\xff" * 100, id="noise"),
    pytest.param(b"", id="empty"),
    pytest.param("text", id="text-for-binary"),
    pytest.param(bytes(262_145), id="oversize"),
]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAA\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: \xff\xfe\r\nSec-WebSocket-Accept: \xff\r\n\r\n",
        b"HTTP/1.1 101 x\r\nUpgrade: \xff\r\nSec-WebSocket-Extensions: \xff\r\n\r\n",
        b"HTTP/1.1 " + b"9" * 30_000,
        b"A" * 30_000,
        b"HTTP/1.1 101 x\r\n" + b"X-Filler: y\r\n" * 3000,
    ],
)
async def test_answer_that_is_no_upgrade_is_a_protocol_error(
    answer: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Another service on the port, a broken proxy, or a flood: one typed error, and nothing else dies."""

    async def script(server: RawServer) -> None:
        await server.read_request()
        await server.stream.send_all(answer)

    with pytest.raises(ProtocolError):
        async with connected(script):
            pytest.fail("connected")


async def test_answer_cut_anywhere_is_a_typed_error() -> None:
    """Whatever part of the upgrade's answer arrives, waiting ends when the server is gone."""
    whole = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\nRetry-After: 1\r\n\r\nsure"
    for size in range(len(whole) + 1):

        async def script(server: RawServer, size: int = size) -> None:
            await server.read_request()
            await server.stream.send_all(whole[:size])

        with pytest.raises(ConnectionFailed):
            async with connected(script):
                pytest.fail("connected")


class Clipped:
    """A stream that passes so many bytes to the client, and no more."""

    def __init__(self, stream: trio.abc.Stream, size: int) -> None:
        self.stream = stream
        self.left = size

    async def send_all(self, data: bytes) -> None:
        await self.stream.send_all(data[: self.left])
        self.left = max(0, self.left - len(data))

    async def receive_some(self, size: int) -> bytes:
        return bytes(await self.stream.receive_some(size))


async def read_until_cut(size: int) -> None:
    """Connects to a server of which only ``size`` bytes arrive, and reads."""

    async def script(server: RawServer) -> None:
        server.stream = Clipped(server.stream, size)  # type: ignore[assignment]
        await server.upgrade()
        await server.send_frame(BINARY, b"first")
        await server.send_frame(BINARY, bytes(130))

    async with connected(script) as transport:
        while True:
            await transport.receive()


@pytest.mark.slow
async def test_connection_cut_at_any_byte_is_tried_again() -> None:
    """In the upgrade, in a frame or between two: a cut is a cut, and never taken for a server's fault."""
    for size in range(320):  # the upgrade's 180, two frames, and then everything arrived
        with pytest.raises(ConnectionFailed) as caught:
            await read_until_cut(size)
        assert reaction_to(caught.value) is Reaction.RESUME, size


@pytest.mark.parametrize(
    "attack",
    [
        frame(BINARY, bytes(LONGEST + 1)),
        frame(BINARY, bytes(LONGEST + 1)) + frame(PING, b"x"),
        frame(BINARY, bytes(LONGEST + 1)) + frame(BINARY, bytes(LONGEST + 1)),
        frame(BINARY, bytes(600), fin=False) + frame(0, bytes(600)),
        pytest.param(
            frame(BINARY, b"", fin=False) + frame(0, b"", fin=False) * 45_000, marks=pytest.mark.slow
        ),
        frame(PING, b"x" * 100) * 1000,
        frame(PONG, b"x" * 100) * 1000,
        b"\x83\x00",
        b"\xc2\x05hello",
        frame(PING, bytes(126)),
        frame(TEXT, b"\xff\xfe"),
        frame(0, b"continues nothing"),
        frame(CLOSE, b"\x03"),
        frame(CLOSE, struct.pack("!H", 1005)),
        frame(CLOSE, struct.pack("!H", 1000) + b"\xff"),
        b"\x82\xff" + b"\xff" * 8,
    ],
    ids=lambda attack: f"{attack[:4].hex()}-{len(attack)}" if isinstance(attack, bytes) else None,
)
async def test_hostile_frames_end_the_connection_and_nothing_else(
    attack: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Oversize, floods, and every kind of broken frame: a typed error in bounded time and memory."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        await server.stream.send_all(attack)
        await trio.sleep_forever()

    async def read_all() -> None:
        async with connected(script, SMALL) as transport:
            while True:
                await transport.receive()

    with trio.fail_after(30), pytest.raises(ConnectionFailed):
        await read_all()


async def test_message_of_the_largest_size_passes() -> None:
    """What it takes to send the limit compressed is allowed; one byte more is not."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        for _ in range(100):  # more in all than may pass between two messages
            await server.send_frame(BINARY, bytes(LONGEST))
        await server.send_frame(BINARY, bytes(LONGEST + 1))
        await server.read_frame()

    async with connected(script, SMALL) as transport:
        for _ in range(100):  # more in all than may pass between two messages
            assert await transport.receive() == bytes(LONGEST)
        with pytest.raises(ProtocolError, match="over 1000 bytes"):
            await transport.receive()


@pytest.mark.parametrize("data", GARBAGE)
@pytest.mark.parametrize("when", ["instead of WELCOME", "later"])
async def test_session_garbage_is_a_protocol_error(
    data: bytes | str, when: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Whatever a server sends, streams end with a typed error and the close says whose fault it was."""
    server = HandServer()
    async with running(server) as session:
        if when == "later":
            await server.greet()
            generation = await begin(session, server)
            await server.wire.to_client.send(data)
            with pytest.raises(ProtocolError):
                await generation.receive()
        else:
            await server.expect(Hello)
            await server.wire.to_client.send(data)
            with pytest.raises(ProtocolError):
                await session.submit(asked(), FOREVER)
        await trio.testing.wait_all_tasks_blocked()
        assert server.wire.client_close_code in {1003, 1007, 1009, 4400}


async def test_session_wrong_digest_ends_that_stream_and_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Text that is not what the server computed never passes for a complete answer; the rest goes on."""
    server = HandServer()
    async with opened(server) as session:
        wrong, sound = [await begin(session, server, number) for number in (1, 2)]
        await server.say(delta(1, 1, "a", 0))
        end = final(1, 2, "a")
        assert end.final is not None
        await server.say(evolve(end, final=evolve(end.final, digest=bytes(32))))
        assert await wrong.receive() is not None
        with pytest.raises(Diverged):
            await wrong.receive()
        await server.left()
        assert server.wire.client_close_code == CloseCode.BAD_MESSAGE
        await server.again()
        assert (await server.resume()).stream_id == 2
        await server.say(final(2, 1, ""))
        assert await sound.receive() is not None


async def test_session_gap_is_mended_by_resuming_three_times_and_then_an_error() -> None:
    """A missing frame is never papered over: it is asked for again, and not for ever."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "a", 0))
        for _ in range(3):
            server.connection.send(delta(1, 2, "lost", 1))
            await server.say(delta(1, 3, "b", 5))
            assert (await server.resume()).last_processed_id == 1
        server.connection.send(delta(1, 2, "lost", 1))
        await server.say(delta(1, 3, "b", 5))
        assert await generation.receive() is not None
        with pytest.raises(ProtocolError, match="missing"):
            await generation.receive()


async def test_session_gap_in_a_stream_that_is_not_kept_is_a_protocol_error() -> None:
    """Where nothing can be asked for again, the stream ends at once."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server, durability=Durability.NONE)
        server.connection.send(delta(1, 1, "lost", 0))
        await server.say(delta(1, 2, "a", 4))
        with pytest.raises(ProtocolError):
            await generation.receive()


async def test_session_sound_frames_before_a_fault_are_delivered() -> None:
    """What was checked and good reaches the application even if the next byte is not."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "good", 0))
        await server.wire.to_client.send(b"\xff")
        chunk = await generation.receive()
        assert chunk is not None
        assert chunk.delta == "good"
        with pytest.raises(ProtocolError):
            await generation.receive()


async def test_session_ends_a_server_that_overruns_the_window() -> None:
    """More than the protocol's window is a violation: 4400, and typed errors for all."""
    server = HandServer()
    async with opened(server) as session:
        stalled, other = [await begin(session, server, number) for number in (1, 2)]
        for number in range(1, 130):
            await server.say(delta(1, number, "a", number - 1))
        await trio.testing.wait_all_tasks_blocked()
        assert server.wire.client_close_code == CloseCode.BAD_MESSAGE
        with pytest.raises(ProtocolError, match="window"):
            await other.receive()
        chunks = [await stalled.receive() for _ in range(128)]
        assert all(chunks)
        with pytest.raises(ProtocolError, match="window"):
            await stalled.receive()


async def test_session_server_that_never_answers_hello_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """HELLO has ``handshake_timeout_s`` to be answered."""
    server = HandServer()
    async with running(server) as session:
        began = trio.current_time()
        with pytest.raises(ConnectFailed, match="HELLO within 10 s"):
            await session.submit(asked(), FOREVER)
        assert trio.current_time() - began == pytest.approx(10)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_bomb_ends_the_connection_and_costs_no_memory(
    bomb: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A server's message that unfolds to more than it may is a typed error, like any that is too long."""
    data, code = BOMBS[bomb]
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        tracemalloc.start()
        await server.wire.to_client.send(data)
        with pytest.raises(ProtocolError):
            await generation.receive()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert server.wire.client_close_code == code

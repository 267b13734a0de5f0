"""The seam to the network: whatever a server does ends in one typed error, in bounded time."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest
import trio
import trio.testing

from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import (
    AuthenticationError,
    ConnectFailed,
    ConnectionFailed,
    ConnectionLost,
    Draining,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    SeedanceError,
    UpgradeRefused,
)
from seedance_sdk.limits import Limits
from seedance_sdk.transport import WebSocketConnector, _notice_a_dead_peer
from seedance_wire.errors import CloseCode
from tests.sdk.raw_server import BINARY, CLOSE, PING, PONG, TEXT, RawServer, connected

SMALL = Limits(max_message_bytes=1000)


async def test_transport_carries_binary_and_text_both_ways() -> None:
    """Messages arrive whole, with their type."""
    seen: list[object] = []

    async def script(server: RawServer) -> None:
        await server.upgrade()
        seen.append(await server.read_frame())
        await server.send_frame(BINARY, b"\x00\xff")
        await server.send_frame(TEXT, b"two ", fin=False)
        await server.send_frame(0, "pieces é".encode())
        seen.append(await server.read_frame())

    async with connected(script) as transport:
        await transport.send(b"hello")
        assert await transport.receive() == b"\x00\xff"
        assert await transport.receive() == "two pieces é"
        await transport.send("text")
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [(BINARY, b"hello"), (TEXT, b"text")]


async def test_transport_asks_for_the_upgrade_with_key_agent_and_subprotocol() -> None:
    """The key travels in the upgrade, and deflate is never offered."""
    request = b""

    async def script(server: RawServer) -> None:
        nonlocal request
        await server.upgrade()
        request = server.request

    async with connected(script):
        pass
    head = request.decode().split("\r\n")
    assert head[0] == "GET /v1/chat HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    assert headers["host"] == "localhost:8080"
    assert headers["authorization"] == "Bearer sk-1"
    assert headers["user-agent"] == "test"
    assert headers["sec-websocket-protocol"] == "seedance.v1"
    assert "sec-websocket-extensions" not in headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationError),
        (403, PermissionDenied),
        (404, UpgradeRefused),
        (429, RateLimited),
        (503, Overloaded),
        (200, UpgradeRefused),
        (302, UpgradeRefused),
    ],
)
@pytest.mark.parametrize("body", ["sized", "until_close", "never_comes"])
async def test_refused_upgrade_is_a_typed_error_whatever_its_body(
    status: int, kind: type[SeedanceError], body: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The status decides; the answer's length, its end and the connection's end do not."""

    async def script(server: RawServer) -> None:
        await server.read_request()
        length = {"sized": "Content-Length: 5\r\n", "until_close": "", "never_comes": "Content-Length: 9\r\n"}
        head = f"HTTP/1.1 {status} No\r\nRetry-After: 7\r\n{length[body]}\r\n"
        await server.stream.send_all(head.encode() + b"sorry")
        if body == "never_comes":
            await trio.sleep_forever()

    with pytest.raises(kind) as caught:
        async with connected(script):
            pytest.fail("connected")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.retry_after_ms == 7000
    assert "sorry" in str(caught.value)


async def test_refused_upgrade_is_the_error_that_the_server_names(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """503 of a server that is shutting down is `Draining`: another one is to be asked."""

    async def script(server: RawServer) -> None:
        await server.read_request()
        await server.stream.send_all(b"HTTP/1.1 503 No\r\nSeedance-Error: draining\r\n\r\n")

    with pytest.raises(Draining) as caught:
        async with connected(script):
            pytest.fail("connected")
    assert caught.value.status == 503


@pytest.mark.parametrize("reads", [True, False])
async def test_server_that_never_answers_the_upgrade_is_given_up(
    reads: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The library alone would wait for ever; we wait ``handshake_timeout_s``."""

    async def script(server: RawServer) -> None:
        if reads:
            await server.read_request()
        await trio.sleep_forever()

    began = trio.current_time()
    with pytest.raises(ConnectFailed, match="10 s"):
        async with connected(script):
            pytest.fail("connected")
    assert trio.current_time() - began == pytest.approx(10)


async def test_server_that_dies_in_the_upgrade_is_noticed_at_once() -> None:
    """No time-out is needed to see a closed connection."""

    async def script(server: RawServer) -> None:
        await server.read_request()

    with pytest.raises(ConnectFailed, match="before it answered"):
        async with connected(script):
            pytest.fail("connected")


@pytest.mark.parametrize("subprotocol", [None, "chat"])
async def test_other_subprotocol_is_a_protocol_error(subprotocol: str | None) -> None:
    """A server that speaks something else is not spoken to."""

    async def script(server: RawServer) -> None:
        await server.upgrade(subprotocol)
        await server.read_frame()

    with pytest.raises(ProtocolError, match="not to this protocol"):
        async with connected(script):
            pytest.fail("connected")


async def test_server_of_another_major_version_is_refused_in_its_own_words() -> None:
    """It answers 400 and lists what it speaks; nothing is ever read under a version not agreed on."""
    answer = b"HTTP/1.1 400 Bad Request\r\nSec-WebSocket-Protocol: seedance.v2\r\nContent-Length: 44\r\n\r\n"
    answer += b"offer one of these subprotocols: seedance.v2"

    async def script(server: RawServer) -> None:
        await server.read_request()
        await server.stream.send_all(answer)

    with pytest.raises(UpgradeRefused, match=r"400: offer one of these subprotocols: seedance\.v2") as caught:
        async with connected(script):
            pytest.fail("connected")
    assert (caught.value.status, caught.value.retryable) == (400, False)


@pytest.mark.parametrize("code", [code for code in CloseCode if code not in {1005, 1006, 1015}])
@pytest.mark.parametrize("reason", ["", "because"])
async def test_close_keeps_code_and_reason_for_every_code(code: CloseCode, reason: str) -> None:
    """The server's last words reach the application, after everything that it had sent."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        await server.send_frame(BINARY, b"last")
        await server.send_frame(CLOSE, struct.pack("!H", code) + reason.encode())
        await server.read_frame()

    async with connected(script) as transport:
        assert await transport.receive() == b"last"
        for _ in range(2):
            with pytest.raises(SeedanceError) as caught:
                await transport.receive()
            assert caught.value.close_code == code
            assert caught.value.reason == reason
        with pytest.raises(SeedanceError):
            await transport.send(b"too late")


@pytest.mark.parametrize("ending", ["eof", "close_without_code"])
async def test_cut_is_a_lost_connection(ending: str) -> None:
    """A connection that ends without a code is lost, and may be tried again."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        if ending == "close_without_code":
            await server.send_frame(CLOSE)

    async with connected(script) as transport:
        with pytest.raises(ConnectionLost) as caught:
            await transport.receive()
    assert caught.value.close_code in {1005, 1006}
    assert caught.value.retryable


async def test_ping_is_answered_while_nobody_receives() -> None:
    """Control traffic never waits for data."""
    pongs: list[tuple[int, bytes]] = []

    async def script(server: RawServer) -> None:
        await server.upgrade()
        await server.send_frame(PING, b"SD\x01")
        pongs.append(await server.read_frame())

    async with connected(script):
        await trio.testing.wait_all_tasks_blocked()
    assert pongs == [(PONG, b"SD\x01")]


async def test_send_to_a_server_that_does_not_read_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One message has ``send_timeout_s``; after that the connection is over, and says why."""
    near, far = trio.testing.lockstep_stream_pair()

    async def open_stream(_: Endpoint) -> trio.abc.Stream:
        return near

    async def serve() -> None:
        await RawServer(far).upgrade()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        endpoint = Endpoint.of("ws://x", subprotocol="seedance.v1", api_key=None, user_agent="test")
        async with WebSocketConnector(open_stream=open_stream)(endpoint, Limits()) as transport:
            began = trio.current_time()
            with pytest.raises(ConnectionLost, match="nothing was read for 10 s"):
                await transport.send(bytes(1000))
            assert trio.current_time() - began == pytest.approx(10)


async def test_cancelled_send_never_leaves_half_a_frame_before_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Once a send is cancelled, no byte of anything else follows: the connection is aborted."""
    near, far = trio.testing.lockstep_stream_pair()
    received = bytearray()

    async def open_stream(_: Endpoint) -> trio.abc.Stream:
        return near

    async def serve() -> None:
        await RawServer(far).upgrade()
        received.extend(await far.receive_some(10))  # the head of a large frame, then a pause
        await trio.sleep(5)
        while data := await far.receive_some(65_536):
            received.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        endpoint = Endpoint.of("ws://x", subprotocol="seedance.v1", api_key=None, user_agent="test")
        async with WebSocketConnector(open_stream=open_stream)(endpoint, Limits()) as transport:
            with trio.move_on_after(0.001) as scope:
                await transport.send(bytes(1_000_000))
            assert scope.cancelled_caught
            with pytest.raises(ConnectionFailed):
                await transport.send(b"another")
    whole = 14 + 1_000_000  # what the first frame has, head included; a memory stream hands over what it took
    assert received[:2] == b"\x82\xff"
    assert 10 <= len(received) <= whole


@pytest.mark.parametrize("behaviour", ["answers", "ignores", "resets", "floods"])
async def test_aclose_is_bounded_whatever_the_server_does(
    behaviour: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A goodbye takes ``close_timeout_s`` at most, and leaves no task."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        if behaviour == "resets":
            return
        code = await server.read_frame()
        assert code == (CLOSE, struct.pack("!H", 1000))
        if behaviour == "answers":
            await server.send_frame(CLOSE, struct.pack("!H", 1000))
        while behaviour == "floods":
            await server.send_frame(PING, b"x")
            await trio.sleep(0.01)
        await trio.sleep_forever()

    began = trio.current_time()
    async with connected(script) as transport:
        await transport.aclose()
    assert trio.current_time() - began <= 2.001


async def test_nobody_listens() -> None:
    """A closed port is a typed error that names the address."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    endpoint = Endpoint.of(
        f"ws://127.0.0.1:{port}", subprotocol="seedance.v1", api_key=None, user_agent="test"
    )
    with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}"):
        async with WebSocketConnector()(endpoint, Limits()):
            pytest.fail("connected")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
async def test_connection_whose_other_end_vanished_is_noticed_by_the_system() -> None:
    """Keepalive 15/5/3 and a user time-out of 20 s, so that an idle connection does not stay half open."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    _notice_a_dead_peer(stream)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    found = [stream.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    assert found == [15, 5, 3, 20_000]
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    await stream.aclose()
    await listeners[0].aclose()


async def test_black_hole_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """An address that never answers costs ``connect_timeout_s``."""

    async def open_stream(_: Endpoint) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    endpoint = Endpoint.of("ws://x", subprotocol="seedance.v1", api_key=None, user_agent="test")
    with pytest.raises(ConnectFailed, match="within 10 s"):
        async with WebSocketConnector(open_stream=open_stream)(endpoint, Limits()):
            pytest.fail("connected")


async def test_wss_to_a_server_without_tls_is_a_typed_error() -> None:
    """TLS failures are errors of ours, and leave no descriptor open."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        endpoint = Endpoint.of(
            f"wss://127.0.0.1:{port}", subprotocol="seedance.v1", api_key=None, user_agent="test"
        )
        with pytest.raises(ConnectFailed, match="SSL"):
            async with WebSocketConnector(ssl.create_default_context())(endpoint, Limits()):
                pytest.fail("connected")
        nursery.cancel_scope.cancel()


async def test_cancelled_while_connected_leaves_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Cancellation does not wait for a server's goodbye."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        await trio.sleep_forever()

    began = trio.current_time()
    with trio.move_on_after(1):
        async with connected(script) as transport:
            await transport.receive()
    assert trio.current_time() - began == pytest.approx(1)


async def test_error_of_the_user_of_a_transport_is_not_wrapped() -> None:
    """The library's nursery is invisible to whoever uses the transport."""

    async def script(server: RawServer) -> None:
        await server.upgrade()
        await server.read_frame()

    with pytest.raises(LookupError, match="mine"):
        async with connected(script):
            raise LookupError("mine")

"""Tests of `seedance_server.request_head`."""

import contextlib

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.errors import BadRequestHead
from seedance_server.request_head import RequestHead, read_head

GOOD = b"GET /v1/chat?x=1 HTTP/1.1\r\nHost: h\r\nUpgrade: a, WebSocket\r\nupgrade: b\r\n\r\n"


async def read(data: bytes, *, chunk: int = 1 << 20, max_bytes: int = 16_384) -> RequestHead | None:
    send, receive = trio.testing.memory_stream_one_way_pair()
    for start in range(0, len(data), chunk):
        await send.send_all(data[start : start + chunk])
    await send.aclose()
    return await read_head(receive, max_bytes=max_bytes)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
async def test_head_is_the_same_however_it_is_cut(chunk: int) -> None:
    """Segments are the network's business; what follows the head is kept."""

    class Chunked(trio.abc.ReceiveStream):
        def __init__(self) -> None:
            self.rest = GOOD + b"\x81\x00"

        async def receive_some(self, max_bytes=None):
            data, self.rest = self.rest[:chunk], self.rest[chunk:]
            return data

        async def aclose(self):
            return

    head = await read_head(Chunked(), max_bytes=16_384)
    assert (head.method, head.path, head.target) == ("GET", "/v1/chat", "/v1/chat?x=1")
    assert head.tokens("upgrade") == ["a", "WebSocket", "b"]
    assert b"\x81\x00".startswith(head.rest)


async def test_head_too_large_is_refused_in_bounded_memory() -> None:
    """16 KiB of head and no more."""
    with pytest.raises(BadRequestHead) as caught:
        await read(b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000)
    assert caught.value.status == 431


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100 + b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Protocol: \xe2\x9c\x93\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: h\r\n\r\n",
    ],
)
async def test_what_is_no_plain_request_is_refused(data: bytes) -> None:
    """Nothing further in ever sees bytes that it can't decode."""
    with pytest.raises(BadRequestHead) as caught:
        await read(data)
    assert caught.value.status in {400, 505}


async def test_a_peer_that_leaves_early_is_no_error() -> None:
    """Port scanners and health checks connect and leave; every truncation of a good head ends quietly."""
    for size in range(len(GOOD)):
        assert await read(GOOD[:size]) is None


async def test_a_header_that_must_be_unique_is() -> None:
    """Two values of one header could mean different things to two readers."""
    head = RequestHead(
        method="GET", target="/", http_version="1.1", headers=(("origin", "a"), ("origin", "b"))
    )
    with pytest.raises(BadRequestHead, match="more than one origin"):
        head.get("origin")
    assert head.get("host") is None


@given(st.binary(max_size=300))
def test_arbitrary_bytes_end_in_a_head_nothing_or_the_documented_error(data: bytes) -> None:
    """Only documented errors for whatever is sent."""

    with contextlib.suppress(BadRequestHead):
        trio.run(read, b"GET / HTTP/1.1\r\nHost: h\r\n" + data + b"\r\n\r\n")

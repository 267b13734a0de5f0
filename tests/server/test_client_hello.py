"""Tests of `seedance_server.client_hello`."""

import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.client_hello import ClientHello, alert, parse_client_hello
from seedance_server.errors import BadClientHello


def hello(*protocols: str, minimum=None, maximum=None, name: str = "host") -> bytes:
    """The first words of a real client: OpenSSL's."""
    context = ssl.create_default_context()
    if minimum is not None:
        context.minimum_version = minimum
    if maximum is not None:
        context.maximum_version = maximum
    if protocols:
        context.set_alpn_protocols(protocols)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


WHOLE = hello("h2", "http/1.1")


@pytest.mark.parametrize(
    ("data", "versions", "protocols"),
    [
        (hello(), {0x0304, 0x0303}, None),
        (hello("http/1.1"), {0x0304, 0x0303}, (b"http/1.1",)),
        (hello("h2", "http/1.1"), {0x0304, 0x0303}, (b"h2", b"http/1.1")),
        (hello(minimum=ssl.TLSVersion.TLSv1_3), {0x0304}, None),
        (hello("h2", maximum=ssl.TLSVersion.TLSv1_2), set(), (b"h2",)),
    ],
)
def test_offers_of_a_real_client_are_read(data, versions, protocols) -> None:
    """An older client has no list of versions, since nobody would have read it."""
    read = parse_client_hello(data)
    assert read == ClientHello(read.versions, protocols)
    assert set(read.versions) == versions


def test_a_hello_is_read_as_soon_as_it_is_whole_and_no_sooner() -> None:
    """Cut anywhere it is incomplete, never wrong; what follows it isn't looked at."""
    data = hello("h2", "http/1.1")
    assert all(parse_client_hello(data[:size]) is None for size in range(len(data)))
    assert parse_client_hello(data + b"\x17\x03\x03\x00\x01x") == parse_client_hello(data)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_hello_may_come_in_any_number_of_records(size: int) -> None:
    """Records are how it travels, not what it says."""
    data = hello("http/1.1")
    message = data[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    split = b"".join(data[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    assert parse_client_hello(split) == parse_client_hello(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x17\x03\x03\x00\x01x",
        b"\x16\x03\x01\x00\x02\x01\x00G",
        hello("http/1.1").replace(b"\x08http/1.1", b"\x09http/1.1"),
    ],
)
def test_anything_else_is_a_bad_hello(data: bytes) -> None:
    """Never another exception, and never taken for a good one."""
    with pytest.raises(BadClientHello):
        parse_client_hello(data)


@given(st.binary(max_size=64), st.integers(0, 600), st.integers(0, 600))
def test_no_bytes_raise_anything_but_a_bad_hello(noise: bytes, start: int, stop: int) -> None:
    """A real hello with noise anywhere in it."""
    with suppress(BadClientHello):
        parse_client_hello(WHOLE[:start] + noise + WHOLE[stop:])


def test_an_alert_is_a_record_that_every_client_reads() -> None:
    """Fatal, in plain, seven bytes."""
    assert alert(70) == bytes.fromhex("15 0303 0002 02 46")

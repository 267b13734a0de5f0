"""Limits, compression and counts of a connection's messages."""

from __future__ import annotations

import random

import pytest

from seedance_wire.codec import SUBPROTOCOLS
from seedance_wire.compression import longest_packed
from seedance_wire.connection import Connection
from seedance_wire.errors import CloseCode, MessageTooLargeError, RemoteProtocolError
from seedance_wire.state import ConnectionState, Role
from seedance_wire.traffic import Traffic

LIMIT = 1000
TEXT = b"the same again and again "
BOMB = b"\x28\xb5\x2f\xfd\x00\x20" + ((16_384 << 3 | 2).to_bytes(3, "little") + b"a") * 100


def traffic(*, compression: bool = True) -> Traffic:
    """One end, which compresses at once if it may."""
    made = Traffic(LIMIT, LIMIT, 0)
    if compression:
        made.allow_compression()
    return made


def test_message_is_counted_as_it_is_and_as_it_travels() -> None:
    """At both ends the same."""
    sender, reader = traffic(), traffic()
    for _ in range(5):
        assert reader.receive(sender.send(TEXT, last=False)) == TEXT
    assert sender.messages_sent == reader.messages_received == 5
    assert sender.plain_bytes_sent == reader.plain_bytes_received == 5 * len(TEXT)
    assert sender.bytes_sent == reader.bytes_received < 4 * len(TEXT)
    assert (sender.is_compressing, traffic(compression=False).is_compressing) == (True, False)


def test_text_messages_are_never_compressed() -> None:
    """Nor read as if they were."""
    sender, reader = traffic(), traffic()
    for text in ("é" * 100, "\x28\x35"):
        assert reader.receive(sender.send(text, last=False)) == text
    assert sender.bytes_sent == sender.plain_bytes_sent == 202


def test_outgoing_limit_is_on_what_a_message_says() -> None:
    """However well it compresses: its reader would stop at the limit."""
    for payload in (b"a" * (LIMIT + 1), "é" * (LIMIT // 2 + 1)):
        with pytest.raises(MessageTooLargeError) as caught:
            traffic().check(payload)
        assert caught.value.limit_bytes == LIMIT < caught.value.size_bytes
    traffic().check(b"a" * LIMIT)


@pytest.mark.parametrize("compression", [False, True])
def test_incoming_limit_closes_with_1009(compression: bool) -> None:
    """Of what came as it is, one byte over; the rest is not even unfolded."""
    for data in ("é" * (LIMIT // 2 + 1), b"x" * (LIMIT + 1), b"x" * (longest_packed(LIMIT) + 1)):
        with pytest.raises(RemoteProtocolError) as caught:
            traffic(compression=compression).receive(data)
        assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG
    assert traffic(compression=compression).receive(b"x" * LIMIT) == b"x" * LIMIT


def test_message_that_only_got_longer_by_compression_passes() -> None:
    """What is allowed as it is must not fail because the context had begun."""
    sender, reader = traffic(), traffic()
    incompressible = random.Random(1).randbytes(LIMIT)
    packed = sender.send(incompressible, last=False)
    assert len(packed) > LIMIT
    assert reader.receive(packed) == incompressible


def test_bomb_closes_with_1009() -> None:
    """A message may unfold to what it may weigh and no more."""
    with pytest.raises(RemoteProtocolError, match="unfolds") as caught:
        traffic().receive(BOMB)
    assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG
    assert traffic(compression=False).receive(BOMB) == BOMB  # bytes like any others


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_connection_refuses_a_message_over_its_limit(subprotocol: str, role: Role) -> None:
    """In every encoding, at either end, before anything is parsed."""
    for payload in ("é" * 501, "x" * 1001, b"x" * 1001):
        end = Connection(role, subprotocol, max_message_bytes=1000)
        with pytest.raises(RemoteProtocolError) as caught:
            end.receive_data(payload)
        assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG
        assert end.state is ConnectionState.ERROR

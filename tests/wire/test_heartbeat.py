"""The heartbeat is three bytes, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.errors import DecodeError
from seedance_wire.heartbeat import decode_heartbeat, encode_heartbeat


@given(st.integers(0, 2**40))
def test_heartbeat_carries_its_number_modulo_256(number: int) -> None:
    """Opcode 0x53 0x44, then one byte that wraps."""
    payload = encode_heartbeat(number)
    assert payload == bytes((0x53, 0x44, number % 256))
    assert decode_heartbeat(payload) == number % 256


@given(st.binary(max_size=8).filter(lambda data: len(data) != 3 or data[:2] != b"SD"))
def test_heartbeat_is_nothing_else(payload: bytes) -> None:
    """A library's own pings are told apart."""
    with pytest.raises(DecodeError):
        decode_heartbeat(payload)

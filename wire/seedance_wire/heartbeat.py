"""The 3-byte heartbeat that rides in a WebSocket ping (S14): an opcode of two bytes and a sequence number.

Either end may send it; the other's pong brings it back unchanged. Must not know when one is due.
"""

from __future__ import annotations

from seedance_wire.errors import DecodeError

__all__ = ["HEARTBEAT_OPCODE", "decode_heartbeat", "encode_heartbeat"]

HEARTBEAT_OPCODE = b"SD"
"""0x53 0x44."""


def encode_heartbeat(sequence: int) -> bytes:
    """Returns the payload of heartbeat number ``sequence``, which counts modulo 256."""
    return HEARTBEAT_OPCODE + bytes((sequence % 256,))


def decode_heartbeat(payload: bytes) -> int:
    """Returns the sequence number of a heartbeat.

    Raises:
        DecodeError: It is a ping or pong of another kind, which is no fault: libraries send their own.
    """
    if len(payload) != 3 or payload[:2] != HEARTBEAT_OPCODE:
        raise DecodeError("no heartbeat: it is three bytes, the first two 0x53 0x44")
    return payload[2]

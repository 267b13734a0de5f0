"""seedance.v1.json: one JSON object in each text WebSocket message, for browsers and for reading along.

Several frames at once are ``{"type": "frames", "frames": […]}``. What each object holds is in
`json_client.py` and `json_server.py`; this file is the way between objects and text, and keeps the parser's
own limits (digits, depth) from leaking out as anything but `DecodeError`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .envelope import MAX_FRAMES, CodedDelta, FromClient, FromServer, Outgoing, Pieces, check_envelope
from .errors import CloseCode, DecodeError, LocalProtocolError
from .json_client import client_message_from_json, client_message_to_json
from .json_fields import Json
from .json_server import server_message_from_json, server_message_to_json
from .messages import Delta, Error, Flush, ServerMessage
from .validity import check_outgoing

__all__ = ["JsonCodec", "parse_json", "write_json"]


class JsonCodec:
    """The JSON encoding."""

    subprotocol = "seedance.v1.json"
    carries_differences = False
    capabilities = ()

    def encode(self, messages: Sequence[Outgoing]) -> str:
        """Writes one envelope; see `Codec`."""
        check_envelope(messages)
        objects = [_to_json(message) for message in messages]
        return write_json(objects[0] if len(objects) == 1 else {"type": "frames", "frames": objects})

    def decode_client(self, payload: bytes | str) -> Sequence[FromClient]:
        """Reads a client's envelope; see `Codec`."""
        return (client_message_from_json(parse_json(payload)),)

    def decode_server(self, payload: bytes | str) -> Sequence[FromServer]:
        """Reads a server's envelope; see `Codec`."""
        match parse_json(payload):
            case {"type": "frames", "frames": list(frames)}:
                if not 1 <= len(frames) <= MAX_FRAMES:
                    raise DecodeError(f"a batch holds 1 to {MAX_FRAMES} frames, not {len(frames)}")
                messages = [server_message_from_json(frame) for frame in frames]
                if not all(isinstance(message, Delta | Flush | Error) for message in messages):
                    raise DecodeError("a batch holds frames only")
                return messages
            case value:
                return (server_message_from_json(value),)


def _to_json(message: Outgoing) -> dict[str, Json]:
    check_outgoing(message)
    if isinstance(message, CodedDelta | Pieces):
        raise LocalProtocolError("this encoding carries frames whole")
    if isinstance(message, ServerMessage):
        return server_message_to_json(message)
    return client_message_to_json(message)


def write_json(value: Json) -> str:
    """Writes JSON on one line, with text as it is.

    Raises:
        LocalProtocolError: It holds a number that JSON has no way to write.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise LocalProtocolError(f"JSON cannot hold this message: {error}") from None


def parse_json(payload: bytes | str) -> Json:
    """Parses a text message.

    Raises:
        DecodeError: It is binary, or not JSON, or an object in it names a member twice.
    """
    if not isinstance(payload, str):
        raise DecodeError("a binary message, where the encoding is text", CloseCode.UNSUPPORTED_DATA)
    try:
        value: Json = json.loads(payload, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {str(error)[:80]}") from None
    return value


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is named twice")
    return members

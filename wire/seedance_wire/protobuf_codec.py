"""seedance.v1: one protobuf envelope in each binary WebSocket message (S11).

`seedance.proto` is the schema, `seedance_pb2` is generated from it, and `protobuf_client.py` and
`protobuf_server.py` carry its fields over. Parsing is done by upb, protobuf's C implementation, which bounds
depth and checks UTF-8; the pure-Python one does neither as fast nor as strictly, so importing this module
without upb fails. Unknown fields are skipped, as a newer peer may add some.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError as ParseError

from . import seedance_pb2 as pb
from .capabilities import PIECES, ZSTD
from .envelope import FromClient, FromServer, Outgoing, check_envelope
from .errors import CloseCode, DecodeError, LocalProtocolError
from .messages import ClientMessage
from .protobuf_client import client_envelope, client_message
from .protobuf_server import server_envelope, server_messages
from .validity import check_outgoing

__all__ = ["ProtobufCodec"]

if api_implementation.Type() != "upb":
    raise ImportError(
        "seedance_wire needs protobuf's upb backend, which every binary wheel has; this process uses "
        f"{api_implementation.Type()!r}. Unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION and install a wheel."
    )


class ProtobufCodec:
    """The protobuf encoding."""

    subprotocol = "seedance.v1"
    carries_differences = True
    capabilities = (PIECES, ZSTD)

    def encode(self, messages: Sequence[Outgoing]) -> bytes:
        """Writes one envelope; see `Codec`."""
        check_envelope(messages)
        for message in messages:
            check_outgoing(message)
        try:
            first = messages[0]
            if isinstance(first, ClientMessage):
                return client_envelope(first).SerializeToString(deterministic=True)
            return server_envelope(messages).SerializeToString()
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(f"{type(messages[0]).__name__} cannot be encoded: {error}") from error

    def decode_client(self, payload: bytes | str) -> Sequence[FromClient]:
        """Reads a client's envelope; see `Codec`."""
        envelope = pb.ClientEnvelope()
        _parse(envelope, payload)
        return (client_message(envelope),)

    def decode_server(self, payload: bytes | str) -> Sequence[FromServer]:
        """Reads a server's envelope; see `Codec`."""
        envelope = pb.ServerEnvelope()
        _parse(envelope, payload)
        return server_messages(envelope)


def _parse(envelope: pb.ClientEnvelope | pb.ServerEnvelope, payload: bytes | str) -> None:
    if isinstance(payload, str):
        raise DecodeError("a text message, where the encoding is binary", CloseCode.UNSUPPORTED_DATA)
    try:
        envelope.ParseFromString(payload)
    except ParseError:
        raise DecodeError("not a protobuf envelope of seedance.v1") from None

"""The three encodings of seedance.v1 and the choice between them.

A codec is a pure function between envelopes and WebSocket messages: it keeps nothing from one call to the
next, so one instance serves any number of connections. It raises `LocalProtocolError` for a message of ours
that cannot be written and `DecodeError` for a payload that is no envelope, and nothing else. Whether a
message is legal at this moment is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from .envelope import FromClient, FromServer, Outgoing
from .errors import LocalProtocolError
from .json_codec import JsonCodec
from .protobuf_codec import ProtobufCodec
from .raw_codec import RawCodec

__all__ = ["SUBPROTOCOLS", "Codec", "choose_subprotocol", "make_codec"]


class Codec(Protocol):
    """One encoding."""

    @property
    def subprotocol(self) -> str:
        """Its name in ``Sec-WebSocket-Protocol``."""

    @property
    def carries_differences(self) -> bool:
        """Whether it can carry a `CodedDelta`."""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Optional features of a connection that it can carry."""

    def encode(self, messages: Sequence[Outgoing]) -> bytes | str:
        """Writes one envelope: bytes go out as a binary WebSocket message, a str as text.

        Raises:
            LocalProtocolError: The messages may not share an envelope, or hold a value that the protocol
                forbids.
        """

    def decode_client(self, payload: bytes | str) -> Sequence[FromClient]:
        """Reads an envelope that a client sent.

        Raises:
            DecodeError: It is none.
        """

    def decode_server(self, payload: bytes | str) -> Sequence[FromServer]:
        """Reads an envelope that a server sent.

        Raises:
            DecodeError: It is none.
        """


_CODECS: Mapping[str, Callable[[], Codec]] = {
    "seedance.v1": ProtobufCodec,
    "seedance.v1.json": JsonCodec,
    "seedance.v1.raw": RawCodec,
}

SUBPROTOCOLS: tuple[str, ...] = tuple(_CODECS)
"""What a server offers, the one it prefers first."""


def choose_subprotocol(offered: Iterable[str]) -> str | None:
    """Returns the offered subprotocol that the server likes best, or None if it knows none of them."""
    names = frozenset(offered)
    return next((name for name in SUBPROTOCOLS if name in names), None)


def make_codec(subprotocol: str) -> Codec:
    """Returns the codec of a subprotocol.

    Raises:
        LocalProtocolError: There is no such subprotocol.
    """
    try:
        return _CODECS[subprotocol]()
    except KeyError:
        raise LocalProtocolError(
            f"no subprotocol {subprotocol!r}; there are {', '.join(SUBPROTOCOLS)}"
        ) from None

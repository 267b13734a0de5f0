"""A client's first words in TLS: which versions and application protocols it offers (RFC 8446, RFC 7301).

Only what a decision needs is read, before the TLS library sees anything: Python's `ssl` completes a handshake
on which no application protocol was agreed, and says nothing to a client that it refuses. Pure.

It must not know which offers are good ones.
"""

from __future__ import annotations

from attrs import frozen

from seedance_server.errors import BadClientHello

__all__ = ["ClientHello", "alert", "parse_client_hello"]

_HANDSHAKE_RECORD = 22
_ALERT_RECORD = 21
_FATAL = 2
_CLIENT_HELLO = 1
_ALPN = 16
_SUPPORTED_VERSIONS = 43
_MAX_RECORD_BYTES = 1 << 14


@frozen
class ClientHello:
    """What a client offers.

    Attributes:
        versions: As in its supported_versions, 0x0304 for TLS 1.3; empty where it knows only older ones.
        protocols: Its ALPN names, best first; None where it doesn't negotiate.
    """

    versions: tuple[int, ...]
    protocols: tuple[bytes, ...] | None


def alert(description: int) -> bytes:
    """A fatal alert, as it is sent before there are keys."""
    return bytes([_ALERT_RECORD, 3, 3, 0, 2, _FATAL, description])


def parse_client_hello(data: bytes) -> ClientHello | None:
    """Reads it from the bytes that came so far; None while it isn't complete.

    Raises:
        BadClientHello: This is something else, or says contradictory lengths.
    """
    message = _first_message(data)
    if message is None:
        return None
    reader = _Reader(message)
    reader.take(2 + 32)  # the version that old servers look at, and randomness
    reader.vector(1)  # session id
    reader.vector(2)  # cipher suites
    reader.vector(1)  # compression methods
    versions: tuple[int, ...] = ()
    protocols: tuple[bytes, ...] | None = None
    extensions = _Reader(reader.vector(2) if reader.has_more else b"")
    while extensions.has_more:
        kind = extensions.number(2)
        body = _Reader(extensions.vector(2))
        if kind == _SUPPORTED_VERSIONS:
            versions = tuple(_Reader(body.vector(1)).numbers())
        elif kind == _ALPN:
            protocols = tuple(_Reader(body.vector(2)).names())
    return ClientHello(versions, protocols)


def _first_message(data: bytes) -> bytes | None:
    """The first handshake message without its head, put together from as many records as it takes."""
    stream = b""
    records = _Reader(data)
    while True:
        if len(stream) >= 4:
            if stream[0] != _CLIENT_HELLO:
                raise BadClientHello("the first message isn't a ClientHello")
            size = int.from_bytes(stream[1:4], "big")
            if len(stream) >= 4 + size:
                return stream[4 : 4 + size]
        if records.has_more and records.peek() != _HANDSHAKE_RECORD:
            raise BadClientHello("this isn't TLS")
        if records.left < 5:
            return None
        records.take(3)
        size = records.number(2)
        if not 0 < size <= _MAX_RECORD_BYTES:
            raise BadClientHello("a record of an impossible size")
        if records.left < size:
            return None
        stream += records.take(size)


class _Reader:
    """Takes bytes off the front; whatever isn't there is a bad hello."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    @property
    def has_more(self) -> bool:
        return self.left > 0

    def peek(self) -> int:
        return self._data[self._at]

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise BadClientHello("a length goes beyond the end")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_bytes: int) -> bytes:
        return self.take(self.number(length_bytes))

    def numbers(self) -> list[int]:
        return [self.number(2) for _ in range((self.left + 1) // 2)]

    def names(self) -> list[bytes]:
        names = []
        while self.has_more:
            names.append(self.vector(1))
        return names

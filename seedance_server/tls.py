"""TLS 1.3 under everything else: which handshakes are taken, with which certificate, and how that is renewed.

A connection's first words are read and judged here, within the bounds of every connection that has proved
nothing yet; what is refused is told why by an alert. The handshake itself then happens in the first read of
the guarded stream, so its time and its place in the lobby are those of a request head. A renewed certificate
holds for connections from then on; those that are open keep theirs.

It must not know what is said over a connection.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import structlog
import trio
from attrs import Factory, define

from seedance_server.client_hello import alert, parse_client_hello
from seedance_server.config import Config
from seedance_server.errors import BadClientHello, ConfigError
from seedance_server.lobby import Visit
from seedance_server.upgrade import HttpAnswer

__all__ = ["ALPN_PROTOCOLS", "Tls", "TlsStatistics"]

_log = structlog.get_logger(__name__)

ALPN_PROTOCOLS = ("http/1.1",)
"""What is spoken over an encrypted connection, best first. HTTP/2 ends at a proxy, if anywhere."""
_TLS_1_3 = 0x0304
_DECODE_ERROR = 50
_PROTOCOL_VERSION = 70
_NO_APPLICATION_PROTOCOL = 120
_MAX_HANDSHAKE_BYTES = 20_000
"""From a client until its handshake is done, in all: a hello with a large key share takes 2,000."""
_READ_BYTES = 4096
_LAST_WORD_S = 1.0
"""Time for an alert: it goes into an empty buffer, or not at all."""
_NOT_TLS = HttpAnswer(400, "this port speaks TLS: use https:// or wss://")


@define
class TlsStatistics:
    """Counts since the start.

    Attributes:
        taken: Hellos that were good ones.
        refused: Those that were not, by reason.
        reloads: Certificates read after the first.
        failed_reloads: Attempts to, that left the old one in place.
    """

    taken: int = 0
    refused: Counter[str] = Factory(Counter)
    reloads: int = 0
    failed_reloads: int = 0


class Tls:
    """Encrypts connections.

    Args:
        certificate: File of the certificate and those that vouch for it, PEM.
        key: File of its private key; None where that is in the same file.
        password: Of the key, if it is encrypted.

    Raises:
        ConfigError: They can't be used. Reading them blocks on the disk.
    """

    def __init__(self, certificate: Path, key: Path | None = None, password: str | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._password = password
        self._context = self._read()
        self._counts = TlsStatistics()

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """What these settings ask for; None for plain connections.

        Raises:
            ConfigError: Certificate or key can't be used.
        """
        if config.ssl_certfile is None:
            return None
        return cls(config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password)

    def statistics(self) -> TlsStatistics:
        """Counts so far; the object is live."""
        return self._counts

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # what resumes here is a session of our own
        context.set_alpn_protocols(ALPN_PROTOCOLS)
        certificate = _read_file("--ssl-certfile", self._certificate)
        key = certificate if self._key is None else _read_file("--ssl-keyfile", self._key)
        try:
            # Without a password of its own OpenSSL would ask at the terminal.
            context.load_cert_chain(self._certificate, self._key, lambda: self._password or "")
        except ssl.SSLError as error:
            raise _in_words(error, certificate, key) from error
        return context

    async def reload(self) -> None:
        """Reads certificate and key again; files that can't be used change nothing, and are complained of.

        If cancelled, nothing has changed.
        """
        try:
            context = await trio.to_thread.run_sync(self._read)
        except ConfigError as error:
            self._counts.failed_reloads += 1
            _log.error("the new certificate can't be used: the old one stays", reason=str(error))
            return
        self._context = context
        self._counts.reloads += 1
        _log.info("certificate read: new connections get it", path=str(self._certificate))

    def under(
        self, serve_stream: Callable[[trio.abc.Stream, Visit, str], Awaitable[None]]
    ) -> Callable[[trio.abc.Stream, Visit, str], Awaitable[None]]:
        """The same service over encrypted connections."""

        async def serve_encrypted(transport: trio.abc.Stream, visit: Visit, address: str) -> None:
            raw = _Handshake(transport, self._counts, address)
            raw.encrypted = trio.SSLStream(raw, self._context, server_side=True, https_compatible=True)
            await serve_stream(raw.encrypted, visit, address)

        return serve_encrypted


class _Handshake(trio.abc.Stream):
    """The connection under TLS: judges its first words, and counts until the handshake is done."""

    encrypted: trio.SSLStream[_Handshake]

    def __init__(self, transport: trio.abc.Stream, counts: TlsStatistics, address: str) -> None:
        self._transport = transport
        self._counts = counts
        self._address = address
        self._left = _MAX_HANDSHAKE_BYTES
        self._hello: bytes | None = None
        self._is_shaken = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Returns what comes; the whole first message at once, and that only if it is a good one."""
        if self._is_shaken:
            return await self._transport.receive_some(max_bytes)
        if self._hello is None:
            return await self._first_words()
        try:
            self.encrypted.selected_alpn_protocol()
            self._is_shaken = True
        except trio.NeedHandshakeError:
            if self._left <= 0:
                await self._refuse("a handshake without end", b"")
            max_bytes = self._left
        return await self._read(max_bytes)

    async def _read(self, max_bytes: int | None) -> bytes:
        data = bytes(await self._transport.receive_some(max_bytes))
        self._left -= len(data)
        return data

    async def _first_words(self) -> bytes:
        words = b""
        while self._hello is None:
            data = await self._read(min(_READ_BYTES, self._left))
            words += data
            if not data:
                return b""
            await self._judge(words)
            if self._hello is None and self._left <= 0:
                await self._refuse("a hello without end", alert(_DECODE_ERROR))
        return words

    async def _judge(self, words: bytes) -> None:
        try:
            hello = parse_client_hello(words)
        except BadClientHello as error:
            is_text = words[:1].isalpha()
            await self._refuse(str(error), _NOT_TLS.encode() if is_text else alert(_DECODE_ERROR))
            return
        if hello is None:
            return
        if _TLS_1_3 not in hello.versions:
            await self._refuse("no TLS 1.3", alert(_PROTOCOL_VERSION))
        offered = hello.protocols
        if offered is not None and not any(name.encode() in offered for name in ALPN_PROTOCOLS):
            await self._refuse("no common ALPN protocol", alert(_NO_APPLICATION_PROTOCOL))
        self._counts.taken += 1
        self._hello = words

    async def _refuse(self, reason: str, last_word: bytes) -> None:
        self._counts.refused[reason] += 1
        _log.info("TLS handshake refused", address=self._address, reason=reason)
        with trio.move_on_after(_LAST_WORD_S):
            await self._transport.send_all(last_word)
        raise trio.BrokenResourceError(reason)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends."""
        await self._transport.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the connection may take more."""
        await self._transport.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._transport.aclose()


def _read_file(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(flag, f"can't be read: {error.strerror}: {path}") from error


def _in_words(error: ssl.SSLError, certificate: bytes, key: bytes) -> ConfigError:
    """What is wrong with the files; OpenSSL calls most of it "PEM lib"."""
    if b"-----BEGIN CERTIFICATE-----" not in certificate:
        return ConfigError("--ssl-certfile", "holds no certificate as PEM")
    if b"PRIVATE KEY-----" not in key:
        return ConfigError("--ssl-keyfile", "holds no private key as PEM")
    if error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError("--ssl-keyfile", "isn't the key of that certificate")
    if b"ENCRYPTED" in key:
        return ConfigError("--ssl-keyfile-password", "is missing or isn't that of the key")
    return ConfigError("--ssl-certfile", f"can't be used: {error}")

"""Tests of `seedance_server.tls`: real handshakes over real sockets, with certificates made for them."""

import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
import trustme

import seedance_server.tls
from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.tls import Tls
from tests.certificates import client_context, write_certificate
from tests.server.test_serve import config, connect, factory, run
from tests.server.wire_client import http, wire_client

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def encrypted_server(tmp_path: Path, **more):
    certificate, key = write_certificate(tmp_path)
    async with trio.open_nursery() as nursery:
        yield await run(nursery, config(ssl_certfile=certificate, ssl_keyfile=key, **more), factory())
        nursery.cancel_scope.cancel()


async def shake(url: str, context: ssl.SSLContext) -> trio.SSLStream:
    raw = await connect(url.replace("wss:", "ws:"))
    stream = trio.SSLStream(raw, context, server_hostname="127.0.0.1", https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(raw)
        raise
    return stream


async def test_tls_carries_websockets_and_http_alike(tmp_path: Path) -> None:
    """The same port, the same service, encrypted; the URL says so."""
    async with encrypted_server(tmp_path) as url:
        assert url.startswith("wss://127.0.0.1:")
        async with wire_client(await shake(url, client_context())) as client:
            await client.submit()
            await client.accepted()
            assert (await client.until_end())[0] == "Hello, world!"
        answer = await http(await shake(url, client_context("http/1.1")), HEALTH)
        assert answer.startswith(b"HTTP/1.1 200 ")


V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("minimum", "maximum", "protocols", "outcome"),
    [
        (V13, V13, (), None),
        (V13, V13, ("http/1.1",), "http/1.1"),
        (V13, V13, ("h2", "http/1.1"), "http/1.1"),
        (V13, V13, ("h2",), "alert no application protocol"),
        (V13, V13, ("ftp", "smtp"), "alert no application protocol"),
        (V12, V13, ("http/1.1",), "http/1.1"),
        (V12, V13, ("h2",), "alert no application protocol"),
        (V12, V12, (), "alert protocol version"),
        (V12, V12, ("http/1.1",), "alert protocol version"),
        (V12, V12, ("h2",), "alert protocol version"),
    ],
)
async def test_versions_and_application_protocols(
    tmp_path: Path, minimum, maximum, protocols, outcome
) -> None:
    """TLS 1.3 and HTTP/1.1 or nothing said of it; whatever else is told why by its alert."""
    async with encrypted_server(tmp_path) as url:
        context = client_context(*protocols)
        context.minimum_version, context.maximum_version = minimum, maximum
        if outcome is None or outcome in protocols:
            stream = await shake(url, context)
            assert stream.selected_alpn_protocol() == outcome
            assert stream.version() == "TLSv1.3"
            await stream.aclose()
        else:
            with pytest.raises(trio.BrokenResourceError) as caught:
                await shake(url, context)
            assert outcome in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"this port speaks TLS: use https:// or wss://\n"),
        (b"\x00\x01\x02\x03\x04\x05", bytes.fromhex("15030300020232")),
        (
            (b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + b"x" * 16_380) * 2,
            bytes.fromhex("15030300020232"),
        ),
        (b"", b""),
    ],
)
async def test_what_is_no_handshake_is_answered_and_cut(tmp_path: Path, sent: bytes, answer: bytes) -> None:
    """Plain HTTP in its own terms, anything else by an alert; never more read than a handshake takes."""
    async with encrypted_server(tmp_path) as url:
        stream = await connect(url.replace("wss:", "ws:"))
        await stream.send_all(sent)
        if not sent:
            await stream.send_eof()
        got = b""
        try:
            while data := await stream.receive_some():
                got += data
        except trio.BrokenResourceError:
            pass  # cut while the rest of a flood was on its way
        assert got.endswith(answer)
        await stream.aclose()


async def test_a_handshake_that_does_not_come_is_cut_in_time(tmp_path: Path) -> None:
    """A connection that drips has the time of a request head, and counts in the lobby meanwhile."""
    async with encrypted_server(tmp_path, handshake_timeout_s=0.2) as url:
        stream = await connect(url.replace("wss:", "ws:"))
        await stream.send_all(b"\x16\x03\x01")
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
        await stream.aclose()


async def test_a_renewed_certificate_holds_for_new_connections_only(tmp_path: Path) -> None:
    """Nobody is cut by it; files that can't be used leave the old one in place, and a line says why."""
    certificate, key = write_certificate(tmp_path)
    tls = Tls(certificate, key)
    log = Mock()

    async def echo(stream, _visit, _address) -> None:
        async with stream:
            while data := await stream.receive_some():
                await stream.send_all(data)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/v1/chat"
    serve = tls.under(echo)

    async def ask(stream, text: bytes) -> bytes:
        await stream.send_all(text)
        return bytes(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, lambda stream: serve(stream, None, "a"), [listener])
        old = await shake(url, client_context())
        assert await ask(old, b"1") == b"1"
        other = trustme.CA()
        write_certificate(tmp_path, other)
        await tls.reload()
        new = await shake(url, client_context(authority=other))
        assert await ask(new, b"2") == b"2"
        assert await ask(old, b"3") == b"3"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seedance_server.tls, "_log", log)
            key.write_text("nonsense")
            await tls.reload()
            certificate.unlink()
            await tls.reload()
        (first, second) = log.error.call_args_list
        assert first.args == ("the new certificate can't be used: the old one stays",)
        assert first.kwargs["reason"] == "--ssl-keyfile holds no private key as PEM"
        assert "--ssl-certfile can't be read: No such file" in second.kwargs["reason"]
        again = await shake(url, client_context(authority=other))
        assert await ask(again, b"4") == b"4"
        assert await ask(old, b"5") == b"5"
        counts = tls.statistics()
        assert (counts.taken, counts.reloads, counts.failed_reloads) == (3, 1, 2)
        for stream in (old, new, again):
            await stream.aclose()
        nursery.cancel_scope.cancel()


def test_a_key_may_have_a_password_and_stand_in_the_same_file(tmp_path: Path) -> None:
    """Without it, or with a wrong one, the server says so; it never asks at a terminal."""
    from cryptography.hazmat.primitives import serialization as s

    certificate, key = write_certificate(tmp_path)
    private = s.load_pem_private_key(key.read_bytes(), None)
    pem = private.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"a password")
    )
    both = tmp_path / "both.pem"
    both.write_bytes(pem + certificate.read_bytes())
    settings = {"model_path": "m", "ssl_certfile": both}
    assert Tls.of(Config(**settings, ssl_keyfile_password="a password")) is not None
    for wrong in (None, "another"):
        with pytest.raises(
            ConfigError, match="--ssl-keyfile-password is missing or isn't that of the key"
        ) as caught:
            Tls.of(Config(**settings, ssl_keyfile_password=wrong))
        assert "another" not in str(caught.value)


def test_files_that_cannot_be_used_are_told_by_their_flag(tmp_path: Path) -> None:
    """Before anything listens."""
    certificate, _ = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other_key = write_certificate(tmp_path / "other")
    nothing = tmp_path / "nothing.pem"
    with pytest.raises(ConfigError, match="--ssl-keyfile can't be read: No such file or directory: "):
        Tls(certificate, nothing)
    with pytest.raises(ConfigError, match="--ssl-keyfile isn't the key of that certificate"):
        Tls(certificate, other_key)
    with pytest.raises(ConfigError, match="--ssl-keyfile holds no private key as PEM"):
        Tls(certificate)
    broken = tmp_path / "broken.pem"
    broken.write_bytes(certificate.read_bytes()[:300])
    with pytest.raises(ConfigError, match=r"--ssl-certfile can't be used: \[SSL\]"):
        Tls(broken, other_key)
    nothing.touch()
    with pytest.raises(ConfigError, match="--ssl-certfile holds no certificate as PEM"):
        Tls(nothing)
    assert Tls.of(Config(model_path="m")) is None
    with pytest.raises(ConfigError, match="--ssl-keyfile needs --ssl-certfile"):
        Config(model_path="m", ssl_keyfile=certificate)

"""Tests of `seedance_sdk.cli.network_checks`."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from seedance_sdk.cli.finding import Finding, Verdict
from seedance_sdk.cli.network_checks import Hopeless, check_connection, check_name, check_ready, is_loopback
from seedance_sdk.endpoint import Endpoint

trustme = pytest.importorskip("trustme", reason="makes certificates: pip install trustme")


def endpoint(url: str) -> Endpoint:
    return Endpoint.of(url, subprotocol="seedance.v1", api_key=None, user_agent="test")


async def serving(handler: Callable[[trio.abc.Stream], Awaitable[None]], nursery: trio.Nursery) -> int:
    """A server on a free port of the loopback."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handler, [listener])
    return int(listener.socket.getsockname()[1])


def says(*lines: str) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    async def handler(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all("\r\n".join(lines).encode())
        await stream.aclose()

    return handler


@pytest.mark.parametrize(
    ("host", "ours"), [("localhost", True), ("127.1.2.3", True), ("::1", True), ("10.0.0.1", False)]
)
def test_loopback_is_this_machine(host: str, ours: bool) -> None:
    """There a key and encryption matter less."""
    assert is_loopback(host) is ours


async def test_name_that_is_none_is_told_as_such() -> None:
    """With what to look at."""
    found: list[Finding] = []
    with pytest.raises(Hopeless):
        await check_name(endpoint("ws://nowhere.invalid"), found.append)
    assert (found[0].verdict, found[0].topic) == (Verdict.FAIL, "DNS")


async def test_name_is_shown_with_its_addresses() -> None:
    """One may see where it leads."""
    found: list[Finding] = []
    await check_name(endpoint("ws://127.0.0.1:8080"), found.append)
    assert found[0].words.startswith("127.0.0.1 is 127.0.0.1 (")


async def test_connection_without_encryption_is_fine_at_home_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond this machine anybody on the way reads along."""
    async with trio.open_nursery() as nursery:
        port = await serving(says(), nursery)
        found: list[Finding] = []
        await check_connection(endpoint(f"ws://127.0.0.1:{port}"), found.append)
        assert [one.verdict for one in found] == [Verdict.OK, Verdict.OK]
        monkeypatch.setattr("seedance_sdk.cli.network_checks.is_loopback", lambda host: False)
        await check_connection(endpoint(f"ws://127.0.0.1:{port}"), found.append)
        assert (found[-1].verdict, found[-1].topic) == (Verdict.WARN, "TLS")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("alpn", ["http/1.1", None])
async def test_encryption_is_looked_at(
    alpn: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Version, ALPN and how long the certificate is good."""
    authority = trustme.CA()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if alpn is not None:
        context.set_alpn_protocols([alpn])

    async def handler(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError):
            await trio.SSLStream(stream, context, server_side=True).do_handshake()

    async with trio.open_nursery() as nursery:
        port = await serving(handler, nursery)
        found: list[Finding] = []
        await check_connection(endpoint(f"wss://127.0.0.1:{port}"), found.append)
        told = {one.topic: one for one in found}
        assert told["TLS"].words.startswith("TLSv1.3 (")
        assert told["ALPN"].verdict is (Verdict.OK if alpn else Verdict.WARN)
        assert told["certificate"].verdict is Verdict.OK
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(Hopeless):
            await check_connection(endpoint(f"wss://127.0.0.1:{port}"), found.append)
        assert (found[-1].verdict, found[-1].topic) == (Verdict.FAIL, "TLS")
        assert "SSL_CERT_FILE" in found[-1].advice
        nursery.cancel_scope.cancel()


async def test_encryption_where_there_is_none_says_so() -> None:
    """The commonest mistake: wss for ws."""
    async with trio.open_nursery() as nursery:
        port = await serving(says("HTTP/1.1 400 Bad Request", "", ""), nursery)
        found: list[Finding] = []
        with pytest.raises(Hopeless):
            await check_connection(endpoint(f"wss://127.0.0.1:{port}"), found.append)
        assert "begins with ws://" in found[-1].advice
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("200 OK", Verdict.OK), ("503 Unavailable", Verdict.WARN), ("404 Not Found", Verdict.WARN)],
)
async def test_readiness_is_asked_for(status: str, verdict: Verdict) -> None:
    """A server that loads or leaves is there, and takes nothing."""
    async with trio.open_nursery() as nursery:
        answer = (f"HTTP/1.1 {status}", "Content-Length: 8", "Connection: close", "", "draining")
        port = await serving(says(*answer), nursery)
        found: list[Finding] = []
        await check_ready(endpoint(f"ws://127.0.0.1:{port}"), found.append)
        assert found[0].verdict is verdict
        nursery.cancel_scope.cancel()


async def test_what_is_no_http_server_is_no_server_of_ours() -> None:
    """It ends there."""
    async with trio.open_nursery() as nursery:
        port = await serving(says("220 mail.example ESMTP", "", ""), nursery)
        found: list[Finding] = []
        with pytest.raises(Hopeless):
            await check_ready(endpoint(f"ws://127.0.0.1:{port}"), found.append)
        assert found[0].verdict is Verdict.FAIL
        nursery.cancel_scope.cancel()


async def test_port_that_nobody_answers_at_is_told_as_such(unused_port: int) -> None:
    """With the question that one should ask."""
    found: list[Finding] = []
    with pytest.raises(Hopeless):
        await check_connection(endpoint(f"ws://127.0.0.1:{unused_port}"), found.append)
    assert found[0].topic == "TCP"
    assert "is the server running" in found[0].advice


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

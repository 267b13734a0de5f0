"""A real server over TLS and the SDK: whom that trusts, and a certificate renewed under a live stream."""

from __future__ import annotations

import signal
import ssl
from pathlib import Path

import pytest
import trio
import trustme

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient, SeedanceClient
from seedance_sdk.errors import ConnectFailed, UpgradeRefused
from tests.certificates import client_context, write_authority, write_certificate
from tests.faults.server_process import ServerProcess, numbers_server

pytestmark = pytest.mark.slow


def ask(url: str, **more) -> str:
    with SeedanceClient(url, **more) as client:
        return client.complete(prompt="count", max_tokens=5).text


def secure(server: ServerProcess) -> str:
    return server.url.replace("ws:", "wss:")


async def said(server: ServerProcess, words: str) -> None:
    with trio.fail_after(30):
        while words not in server.log:  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.01)


async def test_tls_is_trusted_as_told_and_renewed_under_a_stream(tmp_path: Path, monkeypatch) -> None:
    """By a context, by the system's store or its variable; never otherwise. SIGHUP cuts nobody."""
    certificate, key = write_certificate(tmp_path)
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    async with numbers_server(tmp_path, *tls) as server:
        url = secure(server)
        five = "".join(numbers(5))
        by_file = ssl.create_default_context(cafile=str(write_authority(tmp_path)))
        assert await trio.to_thread.run_sync(lambda: ask(url, ssl_context=by_file)) == five
        with pytest.raises(ConnectFailed, match="certificate verify failed") as caught:
            await trio.to_thread.run_sync(ask, url)
        assert not caught.value.retryable
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert await trio.to_thread.run_sync(ask, url) == five
        with pytest.raises(UpgradeRefused, match="this port speaks TLS: use https:// or wss://"):
            await trio.to_thread.run_sync(ask, server.url)

        async with AsyncSeedanceClient(url) as client:
            stream = await client.complete(prompt="count", max_tokens=300, stream=True)
            text = (await anext(stream)).delta
            key.write_text("nonsense")
            server.signal(signal.SIGHUP)
            await said(server, "the new certificate can't be used: the old one stays")
            assert await trio.to_thread.run_sync(ask, url) == five
            other = trustme.CA()
            write_certificate(tmp_path, other)
            server.signal(signal.SIGHUP)
            await said(server, "certificate read: new connections get it")
            renewed = client_context(authority=other)
            assert await trio.to_thread.run_sync(lambda: ask(url, ssl_context=renewed)) == five
            async for chunk in stream:
                text += chunk.delta
            assert text == "".join(numbers(300))
        assert server.log.count("peer left") == server.log.count("code=1000")

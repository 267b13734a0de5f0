"""Several endpoints, each a real process: one dies under a stream, and what TLS agrees on is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripted_server import numbers
from seedance_sdk import AsyncSeedanceClient, Edges, Limits
from tests.certificates import write_authority, write_certificate
from tests.faults.server_process import numbers_process, numbers_server

pytestmark = pytest.mark.slow


async def test_stream_goes_on_at_the_next_process_with_the_journal_of_one_that_was_killed(
    tmp_path: Path,
) -> None:
    """A standby that takes the journal over has everything: the client finds it, and misses nothing."""
    (tmp_path / "second").mkdir()
    journal = str(tmp_path / "journal.db")
    first = numbers_process(tmp_path)
    second = numbers_process(tmp_path / "second", "--journal", journal)
    edges = Edges([first.url, second.url])
    try:
        first.start()
        await first.wait_ready()
        async with AsyncSeedanceClient(edges, limits=Limits(connect_timeout_s=1)) as client:
            stream = await client.complete(prompt="count", max_tokens=400, stream=True)
            text = (await anext(stream)).delta
            await first.kill()
            second.start()
            text += "".join([chunk.delta async for chunk in stream])
            assert text == "".join(numbers(400))
            assert stream.reconnects == 1
            figures = {each.url: each.answers for each in client.latency.report().endpoints}
            assert figures[first.url].interrupted == 1
            assert figures[second.url].finished == 1
    finally:
        first.destroy()
        second.destroy()


async def test_protocol_that_tls_agreed_on_is_counted(tmp_path: Path, monkeypatch) -> None:
    """The server speaks what was asked for."""
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(write_authority(tmp_path)))
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    async with (
        numbers_server(tmp_path, *tls) as one,
        AsyncSeedanceClient(one.url.replace("ws:", "wss:")) as client,
    ):
        await client.complete(prompt="count", max_tokens=5)
        (endpoint,) = client.endpoints
        assert endpoint.routing.alpn_match == 1.0
        assert endpoint.routing.handshakes == 1

"""Tenants apart: a real server, the real SDK, and nothing of one tenant that another could see."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import AuthenticationError, RateLimited, StreamNotFound
from seedance_server.config import Config
from seedance_server.key_file import add_key, revoke_key
from seedance_server.keys import make_key
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine, serve_in_memory
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import Accepted, Bye, Hello, ResumeFailure, ResumeRejected, Welcome
from tests.server.attacks import UPGRADE
from tests.server.wire_client import http, wire_client

PIECES = [f"piece {number}, " for number in range(40)]
ASK = {"messages": [{"role": "user", "content": "Hi"}]}


class Tenants:
    """A key file and the keys in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, str] = {}
        self.ids: dict[str, str] = {}

    def add(self, name: str, **settings: str) -> None:
        text, key = make_key(name, os.urandom)
        add_key(self.path, key, settings)
        self.keys[name], self.ids[name] = text, key.id


def authorization(key: str) -> tuple[bytes, bytes]:
    return b"Authorization", f"Bearer {key}".encode()


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    made = Tenants(tmp_path / "keys.toml")
    made.add("ours")
    made.add("theirs")
    return made


def load(_config: Config, _progress: object) -> ServedModel:
    return ServedModel(
        name="scripted",
        context_tokens=4096,
        vocab_size=0x110000,
        engine=ScriptedEngine(PIECES),
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
    )


@asynccontextmanager
async def serving(tenants: Tenants, **settings: object) -> AsyncIterator[str]:
    """A server on a free loopback port, with a journal on disk."""
    journal = tenants.path.with_name("journal.db")
    config = Config(model_path="m", port=0, keys_path=tenants.path, journal_path=journal, **settings)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(serve, config, load, watch_signals=False))
            nursery.cancel_scope.cancel()


async def bookmark_of(url: str, key: str, pieces: int = 3) -> tuple[Bookmark, str]:
    """Takes some of an answer; returns where it stands, and its text so far."""
    async with AsyncSeedanceClient(url, api_key=key) as client:
        stream = await client.chat(**ASK, stream=True)
        text = ""
        while text.count(",") < pieces:
            text += (await anext(stream)).delta
        return stream.bookmark, text


async def ask_for_ever(client: AsyncSeedanceClient) -> None:
    while True:
        await client.chat(**ASK)
        await trio.sleep(0.05)


@pytest.mark.slow
async def test_tenant_goes_on_with_its_stream_and_no_other_tenant_does(tenants: Tenants):
    """The bookmark with its token is worth nothing under another tenant's key, at any time."""
    async with serving(tenants) as url:
        bookmark, text = await bookmark_of(url, tenants.keys["ours"])
        for _ in range(2):
            async with AsyncSeedanceClient(url, api_key=tenants.keys["theirs"]) as thief:
                with pytest.raises(StreamNotFound) as caught:
                    await (await thief.resume(bookmark)).collect()
                assert "piece" not in str(caught.value)
            async with AsyncSeedanceClient(url, api_key=tenants.keys["ours"]) as owner:
                completion = await (await owner.resume(bookmark)).collect()
                assert "".join(PIECES).startswith(text + completion.text)
                assert completion.finish_reason == "cancelled"  # by the client that was closed


@pytest.mark.slow
async def test_a_thousand_foreign_and_unknown_sessions_are_one_answer(tenants: Tenants, autojump_clock):
    """Another tenant's with its token, with a wrong token, nobody's: the same new, empty session."""
    config = Config(model_path="m", keys_path=tenants.path)
    ours, theirs = ([authorization(tenants.keys[name])] for name in ("ours", "theirs"))
    async with serve_in_memory(ScriptedEngine(PIECES), config=config) as server:
        async with wire_client(server.connect(), headers=ours) as client:
            owned = client.welcome
            await client.submit()
            await client.frames(3)
        answers = set()
        for number in range(1_000):
            unknown = evolve(owned, session_id=secrets.token_hex(16), resume_token=secrets.token_bytes(32))
            former = (owned, evolve(owned, resume_token=bytes(32)), unknown)[number % 3]
            async with wire_client(server.connect(), headers=theirs, hello=False) as thief:
                await thief.send(Hello(session_id=former.session_id, resume_token=former.resume_token))
                welcome = await thief.receive()
                assert isinstance(welcome, Welcome)
                assert owned.session_id != welcome.session_id
                new = {"session_id": "", "resume_token": b""}
                answers.add(evolve(welcome, **new))
        assert len(answers) == 1
        assert not answers.pop().session_present
        async with wire_client(server.connect(), headers=ours, former=owned) as client:
            assert client.welcome.session_present
            assert client.welcome.epoch == owned.epoch + 1  # nobody disturbed it


@pytest.mark.parametrize("stream_id", [1, 2, 99])
async def test_tenant_learns_nothing_by_the_numbers_of_streams(
    tenants: Tenants, autojump_clock, stream_id: int
):
    """RESUME and `continues` of a stream that only another tenant has: as if there were none."""
    config = Config(model_path="m", keys_path=tenants.path)
    ours, theirs = ([authorization(tenants.keys[name])] for name in ("ours", "theirs"))
    async with (
        serve_in_memory(ScriptedEngine(PIECES), config=config) as server,
        wire_client(server.connect(), headers=ours) as client,
    ):
        await client.submit()
        await client.submit()
        async with wire_client(server.connect(), headers=theirs) as thief:
            answer = await thief.resume(stream_id)
            assert answer == ResumeRejected(stream_id=stream_id, code=ResumeFailure.NOT_FOUND)
            await thief.submit(continues=stream_id)
            refused = await thief.refused()
            assert (refused.field, refused.message) == ("continues", f"there is no stream {stream_id}")


async def test_same_idempotency_key_of_two_tenants_is_two_requests(tenants: Tenants, autojump_clock):
    """Keys are a tenant's own: neither attaches to the other's stream, and both are answered."""
    engine = ScriptedEngine(lambda request: [chr(each) for each in request.prompt_ids])
    config = Config(model_path="m", keys_path=tenants.path)
    async with serve_in_memory(engine, config=config) as server:
        for name, text in (("ours", "secret"), ("theirs", "guess")):
            headers = [authorization(tenants.keys[name])]
            async with wire_client(server.connect(), headers=headers) as client:
                await client.submit(text, idempotency_key=bytes(16))
                accepted = await client.receive()
                assert isinstance(accepted, Accepted)
                assert not accepted.replayed
                assert (await client.until_end())[0] == text
    assert len(engine.requests) == 2


@pytest.mark.slow
async def test_revoked_key_closes_its_connections_and_opens_no_more(tenants: Tenants):
    """Without a restart, within two looks at the file; the other tenant notices nothing."""
    async with serving(tenants) as url:
        tenants.add("late")
        async with (
            AsyncSeedanceClient(url, api_key=tenants.keys["ours"]) as ours,
            AsyncSeedanceClient(url, api_key=tenants.keys["theirs"]) as theirs,
        ):
            assert (await ours.chat(**ASK)).text == (await theirs.chat(**ASK)).text == "".join(PIECES)
            revoke_key(tenants.path, tenants.ids["ours"])
            with pytest.raises(AuthenticationError):
                await ask_for_ever(ours)
            assert (await theirs.chat(**ASK)).text == "".join(PIECES)
        async with AsyncSeedanceClient(url, api_key=tenants.keys["late"]) as late:
            assert (await late.chat(**ASK)).text == "".join(PIECES)


@pytest.mark.slow
async def test_tenant_over_its_streams_is_refused_and_the_other_served(tenants: Tenants):
    """N are served, N + 1 is refused with when to come back, the other tenant is served all the same."""
    tenants.add("small", max_streams="2")
    async with serving(tenants) as url, AsyncSeedanceClient(url, api_key=tenants.keys["small"]) as small:
        async with await small.chat(**ASK, stream=True) as one, await small.chat(**ASK, stream=True) as two:
            with pytest.raises(RateLimited) as caught:
                await small.chat(**ASK)
            assert caught.value.retry_after_ms
            async with AsyncSeedanceClient(url, api_key=tenants.keys["theirs"]) as other:
                assert (await other.chat(**ASK)).text == "".join(PIECES)
            assert (await one.collect()).text == (await two.collect()).text == "".join(PIECES)
        assert (await small.chat(**ASK)).text == "".join(PIECES)


async def test_tenant_over_its_connections_gets_429_and_the_other_comes_in(tenants: Tenants, autojump_clock):
    """Before the upgrade, with Retry-After; a connection that is closed makes room."""
    tenants.add("small", max_connections="2")
    config = Config(model_path="m", keys_path=tenants.path)
    name, value = authorization(tenants.keys["small"])
    request = UPGRADE.removesuffix(b"\r\n") + name + b": " + value + b"\r\n\r\n"
    headers = [(name, value)]
    async with (
        serve_in_memory(config=config) as server,
        wire_client(server.connect(), headers=headers),
        wire_client(server.connect(), headers=headers) as second,
    ):
        answer = await http(server.connect(), request)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 5\r\n" in answer
        assert b"\r\nSeedance-Error: rate_limited\r\n" in answer
        async with wire_client(server.connect(), headers=[authorization(tenants.keys["theirs"])]):
            pass
        await second.send(Bye())
        assert await second.close_code() == 1000
        await trio.sleep(3)
        async with wire_client(server.connect(), headers=headers):
            assert server.gate.accounts.of("small").connections == 2

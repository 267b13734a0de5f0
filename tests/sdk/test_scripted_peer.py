"""The double's end of a connection, spoken to message by message."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from seedance_sdk.errors import ConnectionLost
from seedance_sdk.limits import Limits
from seedance_sdk.testing import Answer, ScriptedServer
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    Accepted,
    Bye,
    Checkpoint,
    Delta,
    Flush,
    Hello,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Submit,
    Welcome,
)
from seedance_wire.rules import Role
from tests.sdk.hand_server import ENDPOINT


class HandClient:
    """The client's end of one connection."""

    def __init__(self, transport: object) -> None:
        self.transport = transport
        self.connection = Connection(Role.CLIENT, "seedance.v1")

    async def say(self, *messages: object) -> None:
        await self.transport.send(self.connection.send(*messages))  # type: ignore[attr-defined, arg-type]

    async def heard(self) -> list[object]:
        """Everything that the server says until it waits."""
        events: list[object] = []
        with trio.move_on_after(0.5):
            while True:
                self.connection.receive_data(await self.transport.receive())  # type: ignore[attr-defined]
                while (event := self.connection.next_event()) is not None:
                    events.append(event)
        return events


@asynccontextmanager
async def connected(server: ScriptedServer) -> AsyncIterator[HandClient]:
    async with server(ENDPOINT, Limits()) as transport:
        yield HandClient(transport)


def submit(sequence_id: int, key: bytes = b"k" * 16) -> Submit:
    return Submit(sequence_id=sequence_id, idempotency_key=key, prompt="x")


async def test_peer_answers_with_checkpoints_and_frames(autojump_clock: trio.testing.MockClock) -> None:
    """Each message is confirmed, and the digest is known before the last frame."""
    server = ScriptedServer(Answer("a"))
    async with connected(server) as client:
        await client.say(Hello())
        await client.heard()
        await client.say(submit(1))
        heard = await client.heard()
    assert [type(event) for event in heard] == [Accepted, Checkpoint, Delta, Checkpoint, Flush]
    assert isinstance(heard[1], Checkpoint)
    assert heard[1].sequence_id == 1
    assert isinstance(heard[3], Checkpoint)
    assert heard[3].streams[0].digest == hashlib.sha256(b"a").digest()[:16]


async def test_peer_executes_a_message_once_however_often_it_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The same key is the same stream, on the next connection too."""
    server = ScriptedServer(Answer("a"))
    async with connected(server) as client:
        await client.say(Hello())
        (welcome,) = await client.heard()
        await client.say(submit(1))
        await client.heard()
    assert isinstance(welcome, Welcome)
    async with connected(server) as client:
        await client.say(Hello(session_id=welcome.session_id, resume_token=welcome.resume_token))
        (again,) = await client.heard()
        assert isinstance(again, Welcome)
        assert (again.session_present, again.last_sequence_id, again.epoch) == (True, 1, 2)
        await client.say(submit(1))
        accepted, _ = await client.heard()
        assert isinstance(accepted, Accepted)
        assert (accepted.replayed, accepted.stream_id) == (True, 1)
        await client.say(Resume(stream_id=1, last_processed_id=0))
        heard = await client.heard()
        assert [type(event) for event in heard] == [Resumed, Delta, Flush]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("token", "present"), [(None, False), (b"guess", False), ("right", True)], ids=["none", "guess", "right"]
)
async def test_peer_knows_a_session_by_its_token_only(
    token: bytes | str | None, present: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A name is no secret."""
    server = ScriptedServer()
    async with connected(server) as client:
        await client.say(Hello())
        (welcome,) = await client.heard()
    assert isinstance(welcome, Welcome)
    right = welcome.resume_token if token == "right" else token
    name = None if token is None else welcome.session_id
    async with connected(server) as client:
        await client.say(Hello(session_id=name, resume_token=right))  # type: ignore[arg-type]
        (again,) = await client.heard()
    assert isinstance(again, Welcome)
    assert again.session_present is present


async def test_peer_rejects_a_resume_of_what_it_has_not(autojump_clock: trio.testing.MockClock) -> None:
    """Unknown is NOT_FOUND: an answer, and the connection stays."""
    async with connected(ScriptedServer()) as client:
        await client.say(Hello())
        await client.heard()
        await client.say(Resume(stream_id=9, last_processed_id=0))
        (rejected,) = await client.heard()
        assert isinstance(rejected, ResumeRejected)
        assert rejected.code is ResumeFailure.NOT_FOUND
        await client.say(Bye())
        with pytest.raises(ConnectionLost) as caught:
            await client.heard()
        assert caught.value.close_code == 1000

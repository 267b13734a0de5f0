"""A journal that fails or is full under a running server: what clients are told, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio_websocket import ConnectionClosed

from seedance_server.journal.errors import (
    JournalFailed,
    JournalFull,
    JournalOverloaded,
    StreamTruncated,
    TenantQuotaExceeded,
)
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Delta, Error, ErrorCode, Frame
from tests.e2e.test_resume import PIECES, check_whole, digest_of
from tests.server.failing_journal import FailingJournal
from tests.server.wire_client import WireClient, http, wire_client


def once(error: Exception, at: int) -> Callable[..., Exception | None]:
    """Fails the call of this number, from 1."""
    calls = 0

    def fault(*_arguments: object, **_more: object) -> Exception | None:
        nonlocal calls
        calls += 1
        return error if calls == at else None

    return fault


async def until_cut(client: WireClient) -> tuple[list[Frame], int]:
    """Reads frames until the server closes; returns them and the close code."""
    frames: list[Frame] = []

    async def read_on() -> None:
        while True:
            frames.extend(await client.frames(1))

    with pytest.raises(ConnectionClosed) as closed:
        await read_on()
    assert closed.value.reason is not None
    return frames, closed.value.reason.code


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("at", [1, 7, 41])
async def test_failed_append_closes_with_fenced_and_the_client_finds_what_was_written(
    autojump_clock, at: int, written: bool
) -> None:
    """Whether the frame is there is unknown to the server; the journal knows, and no frame comes twice."""
    journal = FailingJournal()
    journal.after = written
    journal.faults["append"] = once(JournalFailed("EIO", unknown=True), at)
    async with serve_in_memory(ScriptedEngine(PIECES), journal=journal) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            taken, code = await until_cut(client)
            assert code == 4412
            assert len(taken) == at - 1  # nothing is sent that isn't known to be durable
        async with wire_client(server.connect(), former=client.welcome) as client:
            assert client.welcome.session_present
            await client.resume(1, taken, digest=digest_of(taken))
            check_whole([*taken, *await client.frames()])
        assert server.admission.open_requests == 0


async def test_full_journal_holds_a_stream_up_until_there_is_room(autojump_clock) -> None:
    """Frames wait, the engine pauses, nothing is sent meanwhile; then it goes on."""
    journal = FailingJournal()
    engine = ScriptedEngine(PIECES)
    async with (
        serve_in_memory(engine, journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        await client.submit()
        await client.accepted()
        taken = await client.frames(5)
        journal.faults["append"] = lambda *_, **__: JournalFull(new_work=False)
        with trio.move_on_after(5) as patience:
            taken += await client.frames(36)
        assert patience.cancelled_caught
        assert engine.paused == (1,)
        journal.faults.clear()
        before = await server.journal.find_stream(client.welcome.session_id, 1)
        assert before.last_id == 5
        check_whole([*taken, *await client.frames()])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JournalFull(new_work=False), ErrorCode.JOURNAL_FULL),
        (JournalOverloaded(10), ErrorCode.OVERLOADED),
    ],
)
async def test_stream_ends_typed_when_there_is_no_room_for_too_long(
    autojump_clock, error: Exception, code: ErrorCode
) -> None:
    """After ten seconds it ends with a durable, retryable error."""

    def only_text(*_: object, finish: str | None = None) -> Exception | None:
        return error if finish is None else None

    journal = FailingJournal()
    async with (
        serve_in_memory(ScriptedEngine(PIECES), journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        await client.submit()
        await client.accepted()
        taken = await client.frames(5)
        journal.faults["append"] = only_text
        began_s = trio.current_time()
        taken += await client.frames()
        assert isinstance(taken[-1], Error)
        assert (taken[-1].code, taken[-1].retryable, taken[-1].id) == (code, True, 6)
        assert 10 <= trio.current_time() - began_s < 12
        record = await server.journal.find_stream(client.welcome.session_id, 1)
        assert (record.last_id, record.finish) == (6, code.value)


async def test_stream_whose_end_finds_no_room_either_waits_in_the_journal(autojump_clock) -> None:
    """Nothing is said that isn't written: the connection closes with 1013, and later it all goes on."""
    journal = FailingJournal()
    async with serve_in_memory(ScriptedEngine(PIECES), journal=journal) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            taken = await client.frames(5)
            journal.faults["append"] = lambda *_, **__: JournalFull(new_work=False)
            more, code = await until_cut(client)
            assert (more, code) == ([], 1013)
        journal.faults.clear()
        async with wire_client(server.connect(), former=client.welcome) as client:
            await client.resume(1, taken, digest=digest_of(taken))
            check_whole([*taken, *await client.frames()])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JournalFull(new_work=True), ErrorCode.JOURNAL_FULL),
        (TenantQuotaExceeded("local", 2, 1), ErrorCode.JOURNAL_FULL),
        (JournalOverloaded(10), ErrorCode.OVERLOADED),
    ],
)
async def test_new_work_without_room_is_refused_and_may_come_again(
    autojump_clock, error: Exception, code: ErrorCode
) -> None:
    """Typed and retryable; what runs goes on, and so does the connection."""
    journal = FailingJournal()
    engine = ScriptedEngine(PIECES)
    async with (
        serve_in_memory(engine, journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        journal.faults["submit"] = lambda *_: error
        await client.submit()
        refused = await client.refused()
        assert (refused.code, refused.retryable) == (code, True)
        assert refused.retry_after_ms
        journal.faults.clear()
        await client.submit()
        await client.accepted()
        check_whole(await client.frames())
        assert server.admission.open_requests == 0


async def test_failed_submit_closes_and_the_same_request_finds_its_stream(autojump_clock) -> None:
    """Whether it was written is unknown: sent again under its key it is executed once in any case."""
    for written in (False, True):
        journal = FailingJournal()
        journal.after = written
        journal.faults["submit"] = once(JournalFailed("EIO", unknown=True), 1)
        engine = ScriptedEngine(PIECES)
        async with serve_in_memory(engine, journal=journal) as server:
            async with wire_client(server.connect()) as client:
                await client.submit(idempotency_key=b"k" * 16)
                assert await client.close_code() == 4412
            async with wire_client(server.connect(), former=client.welcome, known=written) as client:
                await client.submit(idempotency_key=b"k" * 16)
                assert await client.accepted() == 1
                if written:
                    await client.resume(1)
                check_whole(await client.frames())
            assert len(engine.requests) == 1


async def test_connection_is_told_to_wait_when_there_can_be_no_session(autojump_clock) -> None:
    """Neither a new one nor the old one: 1013, and nothing is lost."""
    journal = FailingJournal()
    async with serve_in_memory(ScriptedEngine(PIECES), journal=journal) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            taken = await client.frames(3)
        for name in ("create_session", "claim_session"):
            journal.faults[name] = lambda *_: JournalFailed("EIO", unknown=False)
        for former in (None, client.welcome):
            async with wire_client(server.connect(), hello=False) as late:
                with pytest.raises(ConnectionClosed) as closed:
                    await late.hello(former)
                assert closed.value.reason is not None
                assert closed.value.reason.code == 1013
        journal.faults.clear()
        async with wire_client(server.connect(), former=client.welcome) as client:
            await client.resume(1, taken)
            check_whole([*taken, *await client.frames()])


async def test_readiness_is_red_while_the_journal_is_in_trouble(autojump_clock) -> None:
    """No new connection comes in, the reason is told, and it goes away with the trouble."""
    journal = FailingJournal()
    request = b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n"
    async with serve_in_memory(journal=journal) as server:
        journal.complaint = "the storage failed (EIO)"
        answer = await http(server.connect(), request)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"the storage failed (EIO)" in answer
        journal.complaint = None
        assert (await http(server.connect(), request)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("error", "code"), [(JournalFailed("EIO", unknown=False), 4412), (StreamTruncated(1, 30, 41), 4410)]
)
async def test_replay_that_cannot_go_on_closes_with_its_own_code(
    autojump_clock, error: Exception, code: int
) -> None:
    """Come back later, or: what you need was deleted while you read."""
    journal = FailingJournal()
    async with serve_in_memory(ScriptedEngine(PIECES * 5), journal=journal) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            taken = await client.frames()
            assert isinstance(taken[0], Delta)
        async with wire_client(server.connect(), former=client.welcome) as client:
            journal.faults["read_frames"] = once(error, 2)
            await client.resume(1)
            _, closed = await until_cut(client)
            assert closed == code
        assert server.door.statistics().contained == 0

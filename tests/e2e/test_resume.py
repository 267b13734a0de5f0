"""A stream that survives its connections: every way to come back, over the whole server in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import pytest
import trio
from attrs import evolve

from seedance_server.engine.sequence import SequenceOutput
from seedance_server.frame_draft import Position, draft_ending, draft_frames, frame_records
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from seedance_wire.messages import (
    Accepted,
    Delta,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    Refused,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    StageTiming,
    Usage,
    Welcome,
)
from tests.server.wire_client import WireClient, wire_client

PIECES = [f"{number} é " for number in range(40)]
TEXT = "".join(PIECES)
LONG = [f"{number} " for number in range(5_000)]


def text_of(frames: Sequence[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, Delta))


def digest_of(frames: Sequence[Frame]) -> bytes:
    return hashlib.sha256(text_of(frames).encode()).digest()[:16]


def check_whole(frames: Sequence[Frame], text: str = TEXT) -> None:
    """Each id once and in order, offsets that add up, the text, and its digest at the end."""
    offset = 0
    for number, frame in enumerate(frames, 1):
        assert (frame.id, frame.offset) == (number, offset)
        offset += len(frame.text.encode()) if isinstance(frame, Delta) else 0
    assert text_of(frames) == text
    end = frames[-1]
    assert isinstance(end, Flush)
    assert end.final is not None
    assert end.final.digest == hashlib.sha256(text.encode()).digest()


async def check_replay(client: WireClient, text: str = TEXT) -> None:
    """The request just sent had its stream already; it comes from its first frame on."""
    accepted = await client.receive()
    assert isinstance(accepted, Accepted)
    assert (accepted.replayed, accepted.stream_id) == (True, 1)
    assert isinstance(await client.resume(1), Resumed)
    check_whole(await client.frames(), text)


async def begin(server: InMemoryServer, count: int, **more: object) -> tuple[Welcome, list[Frame]]:
    """Asks, takes so many frames, and is cut."""
    async with wire_client(server.connect()) as client:
        await client.submit(**more)
        await client.accepted()
        return client.welcome, await client.frames(count)


async def write_ahead(
    server: InMemoryServer, welcome: Welcome, pieces: Sequence[str], count: int
) -> list[Frame]:
    """Writes a whole answer as another process would that owns the session; returns its first frames."""
    claimed = await server.journal.adopt_session(welcome.session_id)  # whoever wrote before is fenced
    record = await server.journal.find_stream(welcome.session_id, 1)
    position = Position(next_id=record.next_frame_id, offset=record.text_bytes)
    outputs = [SequenceOutput(id=1, text=piece, token_ids=(1,)) for piece in pieces]
    draft = draft_frames(1, position, outputs, segment_bytes=1 << 30)
    final = Final(
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=2, completion_tokens=len(pieces)),
        timing=StageTiming(),
        digest=draft.position.digest.digest(),
    )
    ending = draft_ending(1, draft.position, final, (), out_of_turn=False)
    records = frame_records(draft)
    for start in range(0, len(records), 256):
        page = records[start : start + 256]
        await server.journal.append(welcome.session_id, claimed.session.epoch, 1, page)
    epoch = claimed.session.epoch
    await server.journal.append(welcome.session_id, epoch, 1, frame_records(ending), finish="stop")
    return [entry.frame for entry in draft.frames[:count]]


@pytest.mark.slow
@pytest.mark.parametrize("subprotocol", ["seedance.v1", "seedance.v1.json", "seedance.v1.raw"])
async def test_resume_sends_exactly_what_is_missing(autojump_clock, subprotocol: str) -> None:
    """S20: the client has 12870, the server 12874; 12871 to 12874 come, in order, and nothing else."""
    pieces = [f"{number % 10}" for number in range(1, 12874)]
    async with serve_in_memory(ScriptedEngine(pieces)) as server:
        welcome, _ = await begin(server, 0)
        taken = await write_ahead(server, welcome, pieces, 12870)
        async with wire_client(server.connect(), subprotocol, former=welcome) as client:
            answer = await client.resume(1, taken, digest=digest_of(taken))
            assert answer == Resumed(
                stream_id=1, next_id=12871, epoch=3, first_available_id=1, last_id=12874, live=False
            )
            frames = await client.frames()
        assert [frame.id for frame in frames] == [12871, 12872, 12873, 12874]
        assert {frame.epoch for frame in frames} == {3}
        check_whole([*taken, *frames], "".join(pieces))


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.0, 0.013, 1.0])
async def test_resume_at_every_frame_boundary_while_it_is_produced(autojump_clock, wait_s: float) -> None:
    """Replay meets live at any point, and the text is the same."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        for cut in range(len(PIECES) + 1):
            welcome, taken = await begin(server, cut)
            await trio.sleep(wait_s)
            async with wire_client(server.connect(), former=welcome) as client:
                assert client.welcome.session_present
                answer = await client.resume(1, taken, digest=digest_of(taken))
                assert isinstance(answer, Resumed)
                assert answer.next_id == len(taken) + 1
                check_whole([*taken, *await client.frames()])
        assert server.registry.statistics().streams == 0


async def test_resume_after_each_single_frame(autojump_clock) -> None:
    """Cut after every frame, forty times in one stream, and it is still one text; epochs never fall."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        welcome, taken = await begin(server, 1)
        epoch = 1
        while not isinstance(taken[-1], Flush):
            async with wire_client(server.connect(), former=welcome) as client:
                await client.resume(1, taken, digest=digest_of(taken))
                assert client.welcome.epoch == epoch + 1
                epoch = client.welcome.epoch
                taken += await client.frames(1)
        check_whole(taken)


async def test_resume_twice_on_one_connection_starts_again_where_it_is_asked_to(autojump_clock) -> None:
    """The second RESUME stops what the first one began; what crossed is dropped."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        welcome, taken = await begin(server, 5)
        async with wire_client(server.connect(), former=welcome) as client:
            await client.resume(1, taken)
            taken += await client.frames(7)
            await client.resume(1, taken, digest=digest_of(taken))
            check_whole([*taken, *await client.frames()])


@pytest.mark.parametrize("finished", [False, True])
async def test_resume_before_the_first_frame(autojump_clock, finished: bool) -> None:
    """Cut right after ACCEPTED: everything is still to come."""
    async with serve_in_memory(ScriptedEngine(PIECES), step_s=0.1) as server:
        welcome, taken = await begin(server, 0)
        await trio.sleep(20 if finished else 0)
        async with wire_client(server.connect(), former=welcome) as client:
            answer = await client.resume(1, taken)
            assert isinstance(answer, Resumed)
            assert answer.live is not finished
            check_whole(await client.frames())


async def test_resume_after_the_end_brings_the_end_again(autojump_clock) -> None:
    """A finished stream can be read from any frame, again and again; behind its last there is nothing."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        welcome, taken = await begin(server, 41)
        for cut in (0, 1, 17, 40, 41):
            async with wire_client(server.connect(), former=welcome) as client:
                answer = await client.resume(1, taken[:cut])
                assert isinstance(answer, Resumed)
                assert (answer.last_id, answer.live) == (41, False)
                if cut < 41:
                    check_whole([*taken[:cut], *await client.frames()])
                await client.submit()  # the connection is as good as any
                assert await client.accepted() > 1


async def test_resume_with_a_foreign_token_gets_a_new_session_and_nothing_else(autojump_clock) -> None:
    """Unknown session, wrong token: one answer; the owner isn't disturbed."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server, wire_client(server.connect()) as owner:
        await owner.submit()
        await owner.accepted()
        taken = await owner.frames(3)
        for session_id, token in (
            (owner.welcome.session_id, bytes(32)),
            ("nobody", owner.welcome.resume_token),
        ):
            forged = Welcome(
                session_id=session_id,
                resume_token=token,
                epoch=1,
                last_sequence_id=0,
                model="",
                limits=owner.welcome.limits,
            )
            async with wire_client(server.connect(), former=forged) as thief:
                assert not thief.welcome.session_present
                assert thief.welcome.session_id != owner.welcome.session_id
                assert thief.welcome.last_sequence_id == 0
                answer = await thief.resume(1)
                assert answer == ResumeRejected(stream_id=1, code=ResumeFailure.NOT_FOUND)
        check_whole([*taken, *await owner.frames()])


async def test_resume_of_what_is_not_there_says_which_of_the_reasons_it_is(autojump_clock) -> None:
    """Never had, ahead of what was written, another text: each its own final answer; the connection stays."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        welcome, taken = await begin(server, 10)
        await trio.sleep(1)
        async with wire_client(server.connect(), former=welcome) as client:
            for stream_id, more, code in (
                (2, {}, ResumeFailure.NOT_FOUND),
                (1, {"last_processed_id": 42}, ResumeFailure.CURSOR_AHEAD),
                (1, {"last_processed_id": 10, "digest": bytes(16)}, ResumeFailure.DIVERGED),
            ):
                answer = await client.resume(stream_id, **more)
                assert isinstance(answer, ResumeRejected)
                assert answer.code is code
                known = code is not ResumeFailure.NOT_FOUND
                assert (answer.first_available_id, answer.last_id) == ((1, 41) if known else (1, 0))
            await client.resume(1, taken, digest=digest_of(taken))
            check_whole([*taken, *await client.frames()])


async def test_resume_of_a_stream_past_its_retention_is_expired(autojump_clock) -> None:
    """An hour after its end it is gone, and that is what is said."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            taken = await client.frames()
            welcome = client.welcome
            await trio.sleep(3_650)
        async with wire_client(server.connect(), former=welcome) as client:
            answer = await client.resume(1, taken[:5])
            assert answer == ResumeRejected(
                stream_id=1, code=ResumeFailure.EXPIRED, first_available_id=42, last_id=41
            )
        await trio.sleep(700)
        async with wire_client(server.connect(), former=welcome) as client:
            assert not client.welcome.session_present


async def test_resume_of_a_stream_whose_beginning_was_deleted_is_truncated(autojump_clock) -> None:
    """Below the first frame that is kept: an explicit answer; from there on: the frames."""
    journal = MemoryJournal()
    async with serve_in_memory(ScriptedEngine(PIECES), journal=journal) as server:
        welcome, taken = await begin(server, 41)
        stream = journal._find(welcome.session_id, 1)
        stream.record = evolve(stream.record, first_available_id=9)
        del stream.frames[:8]
        async with wire_client(server.connect(), former=welcome) as client:
            answer = await client.resume(1, taken[:5])
            assert answer == ResumeRejected(
                stream_id=1, code=ResumeFailure.TRUNCATED, first_available_id=9, last_id=41
            )
            answer = await client.resume(1, taken[:8], digest=digest_of(taken[:8]))
            assert isinstance(answer, Resumed)
            check_whole([*taken[:8], *await client.frames()])


async def test_newest_connection_wins_before_the_older_one_is_noticed(autojump_clock) -> None:
    """The old connection, still open, is closed with 4409; the text goes on in the new one."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server, wire_client(server.connect()) as old:
        await old.submit()
        await old.accepted()
        taken = await old.frames(4)
        async with wire_client(server.connect(), former=old.welcome) as new:
            await new.resume(1, taken)
            assert await old.close_code() == 4409
            check_whole([*taken, *await new.frames()])
        assert server.door.statistics().contained == 0


@pytest.mark.slow
async def test_session_that_flaps_twenty_times_in_two_seconds_loses_nothing(autojump_clock) -> None:
    """Each connection opens before the one before it is gone."""
    pieces = [f"{number} " for number in range(300)]
    async with serve_in_memory(ScriptedEngine(pieces)) as server, trio.open_nursery() as nursery:
        welcome, taken = await begin(server, 3)

        async def linger(client: WireClient) -> None:
            assert await client.close_code() == 4409

        async def come_back(task_status: trio.TaskStatus[None]) -> None:
            async with wire_client(server.connect(), former=welcome) as client:
                await client.resume(1, taken, digest=digest_of(taken))
                with trio.move_on_after(0.1):
                    while not (taken and isinstance(taken[-1], Flush)):
                        taken.extend(await client.frames(1))
                task_status.started()
                await linger(client)

        for _ in range(20):
            await nursery.start(come_back)
        async with wire_client(server.connect(), former=welcome) as client:
            await client.resume(1, taken, digest=digest_of(taken))
            check_whole([*taken, *await client.frames()], "".join(pieces))


async def test_request_sent_again_is_executed_once(autojump_clock) -> None:
    """On the same connection, on the next one, after its end, in another session: one generation."""
    engine = ScriptedEngine(PIECES)
    key = b"an idempotency key"
    async with serve_in_memory(engine) as server:
        async with wire_client(server.connect()) as client:
            welcome = client.welcome
            await client.submit(idempotency_key=key)
            first = await client.receive()
            await client.submit(idempotency_key=key)
            taken = []
            while not isinstance(again := await client.receive(), Accepted):
                taken.append(again)
            assert isinstance(first, Accepted)
            assert (first.replayed, again.replayed, again.stream_id) == (False, True, 1)
        async with wire_client(server.connect(), former=welcome) as client:
            # Both are acknowledged, and both may be sent again: the client never saw the answers.
            client.connection._state._sequence_ids.begin(0, repeats=False)
            await client.submit(idempotency_key=key)
            again = await client.receive()
            assert isinstance(again, Accepted)
            assert (again.replayed, again.stream_id) == (True, 1)
            assert isinstance(await client.resume(1, ()), Resumed)
            check_whole(await client.frames())
            async with wire_client(server.connect()) as other:
                await other.submit(idempotency_key=key)
                refused = await other.refused()
                assert (refused.code, refused.field) == (ErrorCode.OVERLOADED, "idempotency_key")
                assert refused.retryable, "somebody is connected there"
        await trio.sleep(0.1)
        async with wire_client(server.connect()) as other:
            await other.submit(idempotency_key=key)
            await check_replay(other)
        assert len(engine.requests) == 1


@pytest.mark.parametrize("wait_s", [0.02, 0.1, 35.0])
async def test_request_of_a_session_that_is_forgotten_goes_on_in_the_next_one(autojump_clock, wait_s) -> None:
    """Its client started afresh: it gets the whole answer, of which nothing is generated a second time."""
    engine = ScriptedEngine(LONG)
    key = b"an idempotency key"
    async with serve_in_memory(engine) as server:
        async with wire_client(server.connect()) as client:
            await client.submit(idempotency_key=key)
            await client.accepted()
            await client.frames(5)
        await trio.sleep(wait_s)  # it is generated still, or has ended, or waits
        async with wire_client(server.connect()) as again:
            await again.submit(idempotency_key=key)
            await check_replay(again, "".join(LONG))
            assert engine.active == ()
        for before, after in pairwise(engine.requests):
            assert len(after.generated_ids) >= len(before.generated_ids), "it goes on where it was"
        async with wire_client(server.connect(), former=client.welcome) as late:
            rejected = await late.resume(1)
            assert isinstance(rejected, ResumeRejected)
            assert rejected.code is ResumeFailure.EXPIRED


async def test_another_request_under_the_same_key_is_refused(autojump_clock) -> None:
    """A key is one request's."""
    async with serve_in_memory(ScriptedEngine(PIECES)) as server, wire_client(server.connect()) as client:
        await client.submit("one", idempotency_key=b"k" * 16)
        await client.accepted()
        sequence_id = await client.submit("two", idempotency_key=b"k" * 16)
        while not isinstance(event := await client.receive(), Refused):
            pass
        assert (event.sequence_id, event.code) == (sequence_id, ErrorCode.IDEMPOTENCY_MISMATCH)
        assert (event.field, event.retryable) == ("idempotency_key", False)

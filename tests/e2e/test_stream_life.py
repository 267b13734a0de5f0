"""What becomes of a stream while nobody reads it, or when it was to end: over the whole server in memory."""

from __future__ import annotations

import pytest
import trio

from seedance_server.config import Config
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import (
    Accepted,
    Durability,
    Error,
    ErrorCode,
    FinishReason,
    Flush,
    OnDisconnect,
    Resumed,
    ResumeFailure,
    ResumeRejected,
)
from tests.e2e.test_resume import PIECES, begin, check_whole, digest_of
from tests.server.wire_client import wire_client


async def test_checkpoints_say_what_may_be_forgotten_and_how_the_text_reads(autojump_clock) -> None:
    """At most one in 100 ms but for one before the final flush, each digest the text's."""
    config = Config(model_path="m", digest_interval_ms=100)
    async with (
        serve_in_memory(ScriptedEngine(PIECES), config=config) as server,
        wire_client(server.connect()) as client,
    ):
        await client.submit()
        await client.accepted()
        frames = await client.frames()
        by_id = {frame.id: frame for frame in frames}
        said = [stream for checkpoint in client.checkpoints for stream in checkpoint.streams]
        assert len(said) >= 3
        assert said[-1].frame_id > 20
        for stream in said:
            upto = [by_id[number] for number in range(1, stream.frame_id + 1)]
            assert stream.digest == digest_of(upto)
        assert client.checkpoints[-1].sequence_id == 1
        times = [checkpoint.timestamp_ms for checkpoint in client.checkpoints]
        assert times == sorted(times)
        assert len(times) <= 0.41 / 0.1 + 2
        await client.cancel(1)
        await trio.sleep(0.2)
        await client.submit()
        await client.accepted()
        assert client.checkpoints[-1].sequence_id >= 2


async def test_detached_stream_goes_on_for_its_grace_then_waits_in_the_journal(autojump_clock) -> None:
    """After 30 s without a reader it leaves the engine and memory; RESUME takes it up at the next token."""
    pieces = [f"{number} " for number in range(100)]
    engine = ScriptedEngine(pieces)
    async with serve_in_memory(engine, step_s=1.0) as server:
        welcome, taken = await begin(server, 5)
        await trio.sleep(40)
        assert engine.active == ()
        assert server.registry.statistics().sessions == 0
        assert server.admission.open_requests == 0
        async with wire_client(server.connect(), former=welcome) as client:
            answer = await client.resume(1, taken, digest=digest_of(taken))
            assert isinstance(answer, Resumed)
            assert answer.live
            assert 30 <= answer.last_id <= 40
            check_whole([*taken, *await client.frames()], "".join(pieces))
        first, second = engine.requests
        assert second.generated_ids == tuple(range(1, answer.last_id + 1))
        assert second.params.seed == first.params.seed is not None
        assert second.delivered_text == "".join(pieces[: answer.last_id])


@pytest.mark.slow
async def test_stream_nobody_comes_back_to_is_abandoned(autojump_clock) -> None:
    """After the resume window it ends, in a terminal frame that says so and stays the same."""
    engine = ScriptedEngine(["x"] * 10_000)
    async with serve_in_memory(engine) as server:
        welcome, taken = await begin(server, 5)
        await trio.sleep(620)
        ends = set()
        for _ in range(2):
            async with wire_client(server.connect(), former=welcome) as client:
                answer = await client.resume(1, taken)
                assert isinstance(answer, Resumed)
                assert not answer.live
                frames = await client.frames()
                assert [frame.id for frame in frames] == list(range(6, answer.last_id + 1))
                end = frames[-1]
                assert isinstance(end, Error)
                assert (end.code, end.retryable) == (ErrorCode.ABANDONED, True)
                ends.add((end.id, end.offset, end.code, end.message))
                assert isinstance(await client.resume(1, [*taken, *frames]), Resumed)
        assert len(ends) == 1
        assert engine.active == ()


async def test_paused_stream_is_parked_and_goes_on_when_it_is_read(autojump_clock) -> None:
    """A reader that stands still for 10 s costs no KV memory; its ack brings the stream back."""
    pieces = [f"{number} " for number in range(100)]
    engine = ScriptedEngine(pieces)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        client.acks = False
        await client.submit()
        await client.accepted()
        taken = await client.frames(32)
        await trio.sleep(5)
        assert engine.paused == (1,)
        await trio.sleep(6)
        assert engine.active == ()
        assert server.registry.statistics().parked == 1
        client.acks = True
        client._taken[1] = 32
        check_whole([*taken, *await client.frames()], "".join(pieces))
        assert engine.requests[1].generated_ids == tuple(range(1, 33))


async def test_run_ahead_lets_a_stream_go_on_into_the_journal(autojump_clock) -> None:
    """So many frames beyond what the reader's window takes, and no more."""
    config = Config(model_path="m", run_ahead_frames=20)
    engine = ScriptedEngine(["x"] * 100)
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        client.acks = False
        await client.submit()
        await client.accepted()
        await client.frames(32)
        await trio.sleep(5)
        record = await server.journal.find_stream(client.welcome.session_id, 1)
        assert record.last_id == 52


@pytest.mark.parametrize("durability", [Durability.COMMITTED, Durability.NONE])
async def test_stream_that_is_to_end_with_its_connection_does(autojump_clock, durability: Durability) -> None:
    """on_disconnect=cancel, or no durability: the engine is free within a step, nothing goes on."""
    engine = ScriptedEngine(PIECES)
    async with serve_in_memory(engine) as server:
        welcome, taken = await begin(server, 3, durability=durability, on_disconnect=OnDisconnect.CANCEL)
        await trio.sleep(0.05)
        assert engine.active == ()
        async with wire_client(server.connect(), former=welcome) as client:
            answer = await client.resume(1, taken)
            if durability is Durability.NONE:
                assert isinstance(answer, ResumeRejected)
                assert answer.code is ResumeFailure.NOT_FOUND
                return
            assert isinstance(answer, Resumed)
            end = (await client.frames())[-1]
            assert isinstance(end, Flush)
            assert end.final is not None
            assert end.final.finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("after_s", [0.0, 40.0])
@pytest.mark.parametrize("count", [0, 3])
async def test_cancel_after_coming_back_ends_a_detached_stream(
    autojump_clock, after_s: float, count: int
) -> None:
    """Whether it still runs or waits in the journal, before its first frame or after."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine, step_s=1.0) as server:
        welcome, taken = await begin(server, count)
        await trio.sleep(after_s)
        async with wire_client(server.connect(), former=welcome) as client:
            await client.cancel(1)
            await trio.sleep(2.5)
            assert engine.active == ()
            await client.resume(1, taken)
            frames = [*taken, *await client.frames()]
            end = frames[-1]
            assert isinstance(end, Flush)
            assert end.final is not None
            assert end.final.finish_reason is FinishReason.CANCELLED
            check_whole(frames, "x" * (len(frames) - 1))
            assert client.checkpoints[-1].sequence_id == 2


async def test_server_without_a_journal_keeps_nothing_and_says_so(autojump_clock) -> None:
    """``--durability none``: ACCEPTED says so, committed is refused, a cut ends the stream."""
    engine = ScriptedEngine(PIECES)
    config = Config(model_path="m", durability="none")
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        await client.submit()
        accepted = await client.receive()
        assert isinstance(accepted, Accepted)
        assert accepted.durability is Durability.NONE
        check_whole(await client.frames())
        await client.submit(durability=Durability.COMMITTED)
        refused = await client.refused()
        assert (refused.code, refused.field) == (ErrorCode.UNSUPPORTED, "durability")
        answer = await client.resume(1)
        assert isinstance(answer, ResumeRejected)
        assert answer.code is ResumeFailure.NOT_FOUND


async def test_turn_continues_from_the_exact_ids_of_the_one_before(autojump_clock) -> None:
    """Prompt and answer as they were, then what is new."""
    engine = ScriptedEngine(["a", "b", "c"])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit(prompt="Q")
        await client.accepted()
        await client.frames()
        await client.submit(prompt="R", continues=1)
        await client.accepted()
        await client.frames()
        assert engine.requests[1].prompt_ids == (ord("Q"), 1, 2, 3, ord("R"))
        await client.submit(prompt="S", continues=9)
        refused = await client.refused()
        assert (refused.code, refused.field) == (ErrorCode.INVALID_REQUEST, "continues")

"""Tests of `seedance_server.stream`."""

import hashlib

import pytest
import trio
from attrs import astuple, evolve

from seedance_server.engine.errors import NumericalError
from seedance_server.engine.sequence import StageTiming
from seedance_server.errors import SessionLost
from seedance_server.journal.errors import JournalFull
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Delta, Error, ErrorCode, FinishReason, FlowAction, Flush
from tests.server.stream_made import PIECES, WHOLE, Reader, streaming
from tests.server.wire_client import wire_client


def check(stream, text=WHOLE) -> None:
    """Ids from 1 without a hole, offsets that add up, one terminal frame, the last; the text."""
    offset, said = 0, ""
    frames = stream.store.frames
    for index, frame in enumerate(frames, 1):
        assert (frame.id, frame.offset) == (index, offset)
        if isinstance(frame, Delta):
            said += frame.text
            offset += len(frame.text.encode())
        terminal = isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)
        assert terminal == (index == len(frames))
    assert said == text
    assert stream.tail.last_id == len(frames)


@pytest.mark.slow
async def test_stream_writes_before_it_publishes(autojump_clock) -> None:
    """No frame can be read that isn't in the store."""
    async with streaming() as stream:
        stream.store.commit_s = 0.003
        while not stream.over.is_set():
            assert stream.tail.last_id <= len(stream.store.records)
            await trio.sleep(0.001)
        check(stream)
        final = stream.store.frames[-1].final
        assert final.digest == hashlib.sha256("".join(PIECES).encode()).digest()
        assert (final.finish_reason, stream.store.finish) == (FinishReason.STOP, "stop")
        assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (1, 300)
        assert [record.token_ids for record in stream.store.records[:2]] == [(1,), (2,)]


async def test_stream_writes_together_what_came_while_it_wrote(autojump_clock) -> None:
    """A slow disk makes commits larger, not streams longer than they must be."""
    async with streaming(PIECES[:100]) as stream:
        stream.store.commit_s = 0.025
        await stream.over.wait()
        check(stream, "".join(PIECES[:100]))
        assert stream.store.appends < 60


async def test_stream_runs_at_its_readers_pace(autojump_clock) -> None:
    """With no room in the window the engine is paused; an acknowledgement lets it go on."""
    async with streaming(reader=32) as stream:
        await trio.sleep(5)
        assert stream.tail.last_id == 32
        assert stream.engine.paused
        while not stream.over.is_set():
            stream.reader.acknowledge()
            await trio.sleep(0.1)
            assert stream.reader.in_flight <= 32
        check(stream)


async def test_stream_tells_its_reader_and_the_engine_the_same_edges(autojump_clock) -> None:
    """Half speed from three quarters of the window, a stand when it is full: one output more at most."""
    async with streaming(reader=32) as stream:
        await stream.tail.wait_beyond(23)
        began_s = trio.current_time()
        assert stream.reader.told == [FlowAction.THROTTLE]
        await stream.tail.wait_beyond(31)
        assert trio.current_time() - began_s == pytest.approx(0.16, abs=0.011)  # 8 frames, 16 steps
        assert stream.reader.told == [FlowAction.THROTTLE, FlowAction.PAUSE]
        await trio.sleep(1)
        assert stream.engine.paused
        assert stream._generation.buffered <= 1
        assert stream.tail.last_id == 32
        stream.reader.acknowledge()
        await trio.sleep(0.2)
        assert stream.reader.told[2:] == [FlowAction.RUN]
        assert not stream.engine.paused
        assert 50 <= stream.tail.last_id < 56


async def test_stream_that_stands_is_parked_though_there_is_some_room(autojump_clock) -> None:
    """A reader that went on a little and then no more holds its KV memory no longer than one that stopped."""
    async with streaming(reader=32) as stream:
        await trio.sleep(3)
        stream.reader.in_flight = 20
        stream.note_progress()
        await trio.sleep(8)
        assert stream.is_parked
        assert not stream.engine.active
        assert stream.tail.last_id == pytest.approx(32, abs=1)
        stream.reader.window = 10**9
        stream.reader.acknowledge()
        await stream.over.wait()
        check(stream)


async def test_stream_that_stands_is_woken_when_its_reader_goes(autojump_clock) -> None:
    """Detached it goes on into the journal, standing or parked before, for its grace."""
    for stood_s in (2, 15):
        async with streaming(reader=32, limits={"orphan_grace_s": 1}) as stream:
            await trio.sleep(stood_s)
            assert stream.is_parked == (stood_s > 10)
            stream.remove_reader(stream.reader)
            await stream.over.wait()
            assert len(stream.store.records) == pytest.approx(132, abs=3)


async def test_stream_runs_ahead_of_a_full_window_into_the_journal(autojump_clock) -> None:
    """So many frames and no more, if allowed; none without a journal, since they would be memory."""
    for durable, made in ((True, 72), (False, 32)):
        async with streaming(reader=32, durable=durable, limits={"run_ahead_frames": 40}) as stream:
            await trio.sleep(5)
            assert stream.tail.last_id == made
            assert stream.engine.paused


async def test_stream_runs_at_the_pace_of_its_quickest_reader(autojump_clock) -> None:
    """One that stands still holds nobody up."""
    async with streaming(reader=32) as stream, trio.open_nursery() as nursery:
        quick = Reader(stream)
        stream.add_reader(quick)
        nursery.start_soon(quick.run)
        await stream.over.wait()
        check(stream)
        nursery.cancel_scope.cancel()


async def test_stream_is_parked_when_its_reader_stands_still_and_goes_on_after(autojump_clock) -> None:
    """Its place in the engine goes to others; the rest comes at the next token."""
    async with streaming(reader=32) as stream:
        await trio.sleep(9)
        assert stream.engine.active
        assert not stream.is_parked
        await trio.sleep(3)
        assert not stream.engine.active
        assert stream.is_parked
        stream.reader.window = 10**9
        stream.reader.acknowledge()
        await stream.over.wait()
        check(stream)
        assert len(stream.engine.requests) == 2
        assert len(stream.engine.requests[1].generated_ids) == 32


@pytest.mark.parametrize("grace_s", [0, 1])
async def test_stream_without_a_reader_leaves_memory_after_its_grace(autojump_clock, grace_s) -> None:
    """What it has is in the journal; it has no end there, and its generation is gone."""
    async with streaming(reader=False, limits={"orphan_grace_s": grace_s}) as stream:
        began_s = trio.current_time()
        await stream.over.wait()
        assert trio.current_time() - began_s == pytest.approx(grace_s, abs=0.05)
        assert stream.store.finish is None
        assert len(stream.store.records) == pytest.approx(grace_s * 100, abs=5)
        await trio.sleep(0.05)
        assert not stream.engine.active


async def test_stream_whose_reader_comes_back_in_time_never_notices(autojump_clock) -> None:
    """The grace begins anew each time that the last one leaves."""
    async with streaming(limits={"orphan_grace_s": 1}) as stream:
        for _ in range(3):
            await trio.sleep(0.2)
            stream.remove_reader(stream.reader)
            stream.remove_reader(stream.reader)
            await trio.sleep(0.7)
            stream.add_reader(stream.reader)
        await stream.over.wait()
        check(stream)
        assert len(stream.engine.requests) == 1


@pytest.mark.parametrize("reader", [True, False, 32])
@pytest.mark.parametrize("after_s", [0.0, 0.015, 5, 15])
async def test_stream_cancelled_at_any_time_ends_within_a_step(autojump_clock, after_s, reader) -> None:
    """Before the first token, between two, detached, paused, parked: with the normal end."""
    async with streaming(["x"] * 10_000, reader=reader) as stream:
        await trio.sleep(after_s)
        stream.cancel()
        stream.cancel()
        await trio.sleep(0.03)
        assert stream.over.is_set()
        check(stream, "x" * (len(stream.store.records) - 1))
        final = stream.store.frames[-1].final
        assert final.finish_reason is FinishReason.CANCELLED
        assert final.digest == hashlib.sha256(b"x" * (len(stream.store.records) - 1)).digest()
        assert stream.tail.after(stream.tail.last_id - 1)[0].out_of_turn
        assert not stream.engine.active


async def test_stream_stops_at_its_deadline(autojump_clock) -> None:
    """Running, paused or parked, it ends with the deadline's own code."""
    for reader, deadline_s in ((True, 0.2), (32, 3), (32, 20)):
        async with streaming(reader=reader, deadline_s=trio.current_time() + deadline_s) as stream:
            await trio.sleep(deadline_s + 0.02)
            assert stream.store.frames[-1].code is ErrorCode.DEADLINE_EXCEEDED
            await trio.sleep(0.02)
            assert not stream.engine.active


async def test_stream_failed_from_outside_ends_with_a_retryable_error(autojump_clock) -> None:
    """The first reason stands."""
    async with streaming(["x"] * 1000) as stream:
        await trio.sleep(1)
        stream.fail(ErrorCode.DRAINING, "bye")
        stream.fail(ErrorCode.INTERNAL, "again")
        await trio.sleep(0.05)
        end = stream.store.frames[-1]
        assert (end.code, end.message, end.retryable) == (ErrorCode.DRAINING, "bye", True)


async def test_stream_stopped_stays_as_it_is(autojump_clock) -> None:
    """No end is written: somebody goes on with it."""
    async with streaming() as stream:
        await trio.sleep(0.1)
        stream.stop()
        await stream.over.wait()
        assert stream.store.finish is None
        await trio.sleep(0.05)
        assert not stream.engine.active


async def test_stream_ends_with_the_sequences_own_error(autojump_clock) -> None:
    """A row without usable probabilities fails alone, after what it had."""
    async with streaming(["a", "b"], errors={2: NumericalError("NaN")}) as stream:
        await stream.over.wait()
        check(stream, "ab")
        end = stream.store.frames[-1]
        assert (end.code, end.retryable) == (ErrorCode.NUMERICAL_ERROR, False)


async def test_stream_waits_in_the_journal_when_the_engine_dies(autojump_clock) -> None:
    """It has no end: the next process goes on with it, behind the last frame that was committed."""
    async with streaming(["a"] * 10, fail_at_step=4) as stream:
        await stream.over.wait()
        assert stream.store.finish is None
        assert [frame.text for frame in stream.store.frames] == ["a"] * 3


async def test_stream_that_is_not_kept_ends_retryably_when_the_engine_dies(autojump_clock) -> None:
    """Nobody can go on with it. The cause stays in the server's log."""
    async with streaming(["a"] * 10, fail_at_step=4, durable=False) as stream:
        await stream.over.wait()
        end = stream.tail.after(3)[-1].frame
        assert (end.code, end.retryable) == (ErrorCode.ENGINE_FAILED, True)
        assert "scripted" not in end.message


async def test_stream_that_was_cancelled_ends_so_when_the_engine_dies(autojump_clock) -> None:
    """Nobody wants the rest: no process need go on with it."""
    async with streaming(["a"] * 10, fail_at_step=4, step_s=1) as stream:
        await trio.sleep(3.5)
        stream.cancel()
        await stream.over.wait()
        assert stream.store.frames[-1].final.finish_reason is FinishReason.CANCELLED


async def test_stream_with_a_bug_in_its_way_is_internal(autojump_clock) -> None:
    """Text that can't be encoded is contained: it ends this stream, and says no more than that."""
    async with streaming(["ok", "\ud800"]) as stream:
        await stream.over.wait()
        check(stream, "ok")
        assert (stream.store.frames[-1].code, stream.store.frames[-1].retryable) == (
            ErrorCode.INTERNAL,
            False,
        )


async def test_stream_that_lost_its_session_touches_nothing_more(autojump_clock) -> None:
    """It just leaves; what it couldn't write was never public."""
    async with streaming() as stream:
        stream.store.fault = lambda _: SessionLost() if stream.store.records[5:] else None
        await stream.over.wait()
        assert stream.tail.last_id == 6
        await trio.sleep(0.05)
        assert not stream.engine.active


async def test_stream_writes_again_what_found_no_room(autojump_clock) -> None:
    """The same frames, once and in order."""
    async with streaming() as stream:
        stream.store.fault = lambda _: JournalFull(new_work=False) if stream.store.appends % 3 else None
        await stream.over.wait()
        check(stream)


async def test_stream_that_cannot_even_write_its_end_says_so(autojump_clock) -> None:
    """Nothing is published; whoever runs it decides."""

    async def fill_up() -> None:
        async with streaming() as stream:
            stream.store.fault = lambda _: JournalFull(new_work=False)
            await trio.sleep(60)

    with pytest.raises(ExceptionGroup) as caught:
        await fill_up()
    assert caught.group_contains(JournalFull)


async def test_stream_without_durability_writes_nothing_and_loses_nothing(autojump_clock) -> None:
    """Its tail is the only copy: it is kept until the reader has it, and its row is ended."""
    async with streaming(["y" * 1000] * 100, durable=False, limits={"tail_bytes": 2000}) as stream:
        await stream.over.wait()
        await trio.sleep(0.1)
        assert stream.store.records == []
        assert stream.store.abandoned
        assert stream.tail.is_ended
        assert stream.reader.sent_id == stream.tail.last_id == 102  # a segment's end among them
        assert stream.tail.first_id > 90


async def test_stream_that_is_cancelled_while_it_writes_loses_nothing_of_what_was_written(
    autojump_clock,
) -> None:
    """Parked in the middle of an append, it goes on behind what the journal has."""
    async with streaming(reader=False, limits={"orphan_grace_s": 0.1}) as stream:
        stream.store.commit_s = 0.004
        await stream.over.wait()
        assert stream.tail.last_id == len(stream.store.records)


STEP_S = 0.1


class TimedEngine(ScriptedEngine):
    """Times what it does, as an engine does; the first token is chosen two steps after the prompt began."""

    def add(self, request):
        super().add(request)
        self._began_s = None

    def step(self):
        now_s = trio.current_time()
        if self._began_s is None:
            self._began_s = now_s
            return []
        outputs = super().step()
        request = self.requests[-1]
        timing = StageTiming(
            queue_s=self._began_s - request.arrival_s - request.preprocess_s,
            preprocess_s=request.preprocess_s,
            prefill_s=now_s + STEP_S - self._began_s,
        )
        return [evolve(output, timing=output.timing and timing) for output in outputs]


class SlowJournal(MemoryJournal):
    """Takes its time for everything."""

    async def append(self, *arguments, **more):
        await trio.sleep(0.3)
        return await super().append(*arguments, **more)

    async def submit(self, *arguments, **more):
        await trio.sleep(0.2)
        return await super().submit(*arguments, **more)


async def test_stage_times_add_up_to_the_time_to_the_first_token(autojump_clock) -> None:
    """Each moment from SUBMIT to the first frame belongs to one stage, also those of commits and hops."""
    async with (
        serve_in_memory(TimedEngine(), journal=SlowJournal(), step_s=STEP_S) as server,
        wire_client(server.connect()) as client,
    ):
        await client.submit()
        sent_s = trio.current_time()
        await client.accepted()
        await client.receive()
        ttft_s = trio.current_time() - sent_s
        _, end = await client.until_end()
        timing = end.final.timing
        assert ttft_s == pytest.approx(0.2 + 2 * STEP_S + 0.3)
        assert timing.egress_ms == pytest.approx(300)
        assert sum(astuple(timing)) / 1e3 == pytest.approx(ttft_s, abs=1e-3)

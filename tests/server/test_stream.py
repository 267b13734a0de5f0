"""Tests of `seedance_server.stream`."""

import hashlib
from contextlib import asynccontextmanager

import pytest
import trio

from seedance_server.engine.errors import NumericalError
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_loop import EngineLoop
from seedance_server.outbox import Outbox
from seedance_server.stream import Stream
from seedance_server.testing import InlineExecutor, ScriptedEngine
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import Delta, Error, ErrorCode, FinishReason, Flush


class Running:
    """A stream at work, and what it has put into its outbox."""

    def __init__(self, stream, outbox, engine):
        self.stream, self.outbox, self.engine = stream, outbox, engine
        self.frames = []

    async def write(self) -> None:
        """Plays the writer: takes and marks as written, for ever."""
        while (batch := await self.outbox.take()) is not None:
            self.frames.extend(batch.messages)
            batch.written()

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames if isinstance(frame, Delta))


@asynccontextmanager
async def streaming(
    script, *, segment_bytes=1 << 16, deadline_s=float("inf"), step_s=0.01, write=True, **more
):
    engine = ScriptedEngine(script, **more)
    loop = EngineLoop(engine, InlineExecutor(step_s), buffer_outputs=8, stall_timeout_s=60)
    outbox = Outbox(frame_bytes=1 << 18, control_messages=8, batch_bytes=1 << 16)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        generation = loop.submit(
            lambda id_: GenerationRequest(id=id_, prompt_ids=(1,), params=SamplingParams(), arrival_s=0)
        )
        stream = Stream(1, generation, outbox, epoch=1, segment_bytes=segment_bytes, deadline_s=deadline_s)
        running = Running(stream, outbox, engine)
        if write:
            nursery.start_soon(running.write)
        nursery.start_soon(stream.run)
        yield running
        nursery.cancel_scope.cancel()


def check_numbering(frames) -> None:
    """Ids from 1 without a hole, offsets that add up, one terminal frame, the last."""
    offset = 0
    for index, frame in enumerate(frames, 1):
        assert (frame.id, frame.offset) == (index, offset)
        if isinstance(frame, Delta):
            offset += len(frame.text.encode())
        terminal = isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)
        assert terminal == (index == len(frames))


async def test_stream_numbers_frames_and_ends_with_digest_and_timing(autojump_clock) -> None:
    """Offsets are bytes; held-back text waits and its tokens are counted with the piece that carries them."""
    async with streaming(["Grüße", "", "", " 🚀"]) as running:
        await trio.sleep(1)
        check_numbering(running.frames)
        first, second, end = running.frames
        assert (first.text, first.token_count, second.text, second.token_count) == ("Grüße", 1, " 🚀", 3)
        assert end.final.finish_reason is FinishReason.STOP
        assert end.final.digest == hashlib.sha256("Grüße 🚀".encode()).digest()
        assert (end.final.usage.prompt_tokens, end.final.usage.completion_tokens) == (1, 4)
        assert end.final.timing.egress_ms >= 0


async def test_stream_sends_nothing_while_its_window_is_full(autojump_clock) -> None:
    """Without acknowledgements: 32 frames, then the engine is paused; each ack lets it go on."""
    async with streaming([f"{number} " for number in range(300)]) as running:
        await trio.sleep(60)
        assert len(running.frames) == running.stream.in_flight == 32
        assert running.engine.paused
        while not isinstance(running.frames[-1], Flush):
            running.stream.acknowledge(running.frames[-1].id, trio.current_time())
            await trio.sleep(0.03)
            assert running.stream.in_flight <= running.stream.window_size <= 128
        check_numbering(running.frames)
        assert running.text == "".join(f"{number} " for number in range(300))
        assert not running.engine.active


async def test_stream_refuses_an_ack_of_what_was_never_sent(autojump_clock) -> None:
    """A client that acknowledges the future breaks the protocol."""
    async with streaming(["a"] * 100) as running:
        await trio.sleep(5)
        with pytest.raises(RemoteProtocolError):
            running.stream.acknowledge(33, trio.current_time())
        running.stream.acknowledge(32, trio.current_time())
        running.stream.acknowledge(1, trio.current_time())


@pytest.mark.parametrize("after_s", [0.0, 0.015, 60])
async def test_stream_cancelled_at_any_time_ends_within_a_step(autojump_clock, after_s) -> None:
    """Before the first token, between two, and when the client has long stopped reading."""
    async with streaming(["x"] * 1000) as running:
        await trio.sleep(after_s)
        running.stream.cancel()
        running.stream.cancel()
        await trio.sleep(0.03)
        check_numbering(running.frames)
        final = running.frames[-1].final
        assert final.finish_reason is FinishReason.CANCELLED
        assert final.digest == hashlib.sha256(running.text.encode()).digest()
        assert not running.engine.active


async def test_stream_cancelled_when_only_its_end_is_left_says_how_it_ended(autojump_clock) -> None:
    """All text was sent but the window is full: the cancel lets the end pass."""
    async with streaming(["x"] * 32) as running:
        await trio.sleep(60)
        assert len(running.frames) == 32
        running.stream.cancel()
        await trio.sleep(0.01)
        assert running.frames[-1].final is not None
        running.stream.acknowledge(33, trio.current_time())
        check_numbering(running.frames)


async def test_stream_stops_at_its_deadline(autojump_clock) -> None:
    """Running or waiting for the window, it ends with the deadline's own code."""
    for script in (["x"] * 10_000, ["x"] * 100):
        async with streaming(script, deadline_s=trio.current_time() + 0.2) as running:
            await trio.sleep(0.22)
            check_numbering(running.frames)
            assert running.frames[-1].code is ErrorCode.DEADLINE_EXCEEDED
            await trio.sleep(0.02)
            assert not running.engine.active


async def test_stream_failed_from_outside_ends_with_a_retryable_error(autojump_clock) -> None:
    """At shutdown a reader that doesn't read is told all the same; the first reason stands."""
    async with streaming(["x"] * 1000) as running:
        await trio.sleep(60)
        running.stream.fail(ErrorCode.DRAINING, "bye")
        running.stream.fail(ErrorCode.INTERNAL, "again")
        await trio.sleep(0.05)
        end = running.frames[-1]
        assert (end.code, end.message, end.retryable) == (ErrorCode.DRAINING, "bye", True)


async def test_stream_ends_with_the_sequences_own_error(autojump_clock) -> None:
    """A row without usable probabilities fails alone, after what it had."""
    async with streaming(["a", "b"], errors={2: NumericalError("NaN")}) as running:
        await trio.sleep(1)
        check_numbering(running.frames)
        assert running.text == "ab"
        assert (running.frames[-1].code, running.frames[-1].retryable) == (ErrorCode.NUMERICAL_ERROR, False)


async def test_stream_ends_retryably_when_the_engine_dies(autojump_clock) -> None:
    """The cause stays in the server's log."""
    async with streaming(["a"] * 10, fail_at_step=4) as running:
        await trio.sleep(1)
        end = running.frames[-1]
        assert (end.code, end.retryable) == (ErrorCode.ENGINE_FAILED, True)
        assert "scripted" not in end.message
        check_numbering(running.frames)


async def test_stream_commits_a_segment_when_it_is_full(autojump_clock) -> None:
    """A non-final FLUSH, numbered like any frame, before text beyond the limit."""
    async with streaming(["12345"] * 6, segment_bytes=10) as running:
        await trio.sleep(1)
        check_numbering(running.frames)
        kinds = ["f" if isinstance(frame, Flush) else "d" for frame in running.frames]
        assert "".join(kinds) == "ddfddfddf"


async def test_stream_with_a_bug_in_its_way_is_internal(autojump_clock) -> None:
    """Text that can't be encoded is contained: it ends this stream, and says no more than that."""
    async with streaming(["ok", "\ud800"]) as running:
        await trio.sleep(1)
        end = running.frames[-1]
        assert (end.code, end.retryable) == (ErrorCode.INTERNAL, False)
        assert not running.engine.active


async def test_stream_returns_when_the_connection_closes(autojump_clock) -> None:
    """A closed outbox ends the stream and frees the sequence."""
    async with streaming(["x"] * 1000) as running:
        await trio.sleep(0.05)
        running.outbox.close()
        await trio.sleep(0.05)
        assert not running.engine.active

"""The stream that an application iterates: time bounds, what it keeps, and every way of leaving it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    DeadlineExceeded,
    EngineFailed,
    PermissionDenied,
    RequestTimeout,
    StreamClosed,
)
from seedance_sdk.stream import AsyncStream
from seedance_sdk.testing import Answer, ErrorCode, FinishReason, ScriptedServer
from tests.strategies import reader_plans


@asynccontextmanager
async def streaming(
    *script: Answer, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, AsyncSeedanceClient, AsyncStream]]:
    server = ScriptedServer(*script)
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True, **options)
        yield server, client, stream


async def test_stream_yields_each_piece_and_then_how_it_ended() -> None:
    """Pieces, offsets and the end are those of the server."""
    answer = Answer("Hé", "llo", finish_reason=FinishReason.STOP, stop="END")
    async with streaming(answer) as (_, _, stream):
        chunks = [chunk async for chunk in stream]
        assert [(chunk.delta, chunk.id, chunk.offset) for chunk in chunks] == [
            ("Hé", 1, 0),
            ("llo", 2, 3),
            ("", 3, 6),
        ]
        assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
        last = chunks[-1]
        assert last.stop == "END"
        assert last.usage is not None
        assert last.timing is not None
        assert (stream.text, stream.last_id, stream.received_bytes) == ("Héllo", 3, 6)
        assert [chunk async for chunk in stream] == []


async def test_collect_returns_the_whole_answer_with_what_was_read_before() -> None:
    """Reading a part by hand costs nothing."""
    async with streaming(Answer("a", "b", "c", finish_reason=FinishReason.LENGTH)) as (_, _, stream):
        await stream.receive()
        completion = await stream.collect()
        assert (completion.text, completion.finish_reason) == ("abc", "length")
        assert completion.usage.completion_tokens == 3


async def test_failure_keeps_what_was_received() -> None:
    """Text, bytes and id stay on the stream, and the text on the error."""
    async with streaming(Answer("Hé", "llo", close_code=4403)) as (_, _, stream):
        with pytest.raises(PermissionDenied) as caught:
            async for _ in stream:
                pass
        assert (stream.text, stream.last_id, stream.received_bytes) == ("Héllo", 2, 6)
        assert caught.value.partial == "Héllo"
        with pytest.raises(PermissionDenied):
            await stream.receive()


async def test_error_frame_ends_one_stream_and_not_its_neighbour() -> None:
    """A failure of one generation is its own."""
    server = ScriptedServer(Answer("a", error=ErrorCode.ENGINE_FAILED), Answer("b", "c", delay_s=0.0))
    async with AsyncSeedanceClient(connector=server) as client:
        failing = await client.complete(prompt="x", stream=True)
        sound = await client.complete(prompt="y", stream=True)
        with pytest.raises(EngineFailed):
            await failing.collect()
        assert (await sound.collect()).text == "bc"


async def test_silence_ends_in_a_timeout_that_cancels(autojump_clock: trio.testing.MockClock) -> None:
    """``timeout`` bounds each wait, not the whole; the server is told to stop."""
    answer = Answer(*"abc", delay_s=4, endless=True)
    async with streaming(answer, timeout=5) as (server, _, stream):
        began = trio.current_time()
        with pytest.raises(RequestTimeout, match="5 s") as caught:
            await stream.collect()
        assert trio.current_time() - began == pytest.approx(17)
        assert caught.value.partial == "abc"
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(RequestTimeout):
            await stream.receive()
        await trio.sleep(1)
        assert server.cancelled == [1]


async def test_deadline_ends_a_stream_that_makes_progress(autojump_clock: trio.testing.MockClock) -> None:
    """``deadline`` bounds the whole, and travels to the server."""
    async with streaming(Answer(*"abcdefgh", delay_s=1), deadline=3.5) as (server, _, stream):
        with pytest.raises(DeadlineExceeded) as caught:
            await stream.collect()
        assert caught.value.partial == "abc"
        assert server.requests[0].deadline_ms == 3500
        await trio.sleep(1)
        assert server.cancelled == [1]


async def test_slow_application_is_no_timeout(autojump_clock: trio.testing.MockClock) -> None:
    """The bound is on the server's silence; an application may take its time."""
    async with streaming(Answer("a", "b"), timeout=5) as (_, _, stream):
        async for _ in stream:
            await trio.sleep(60)
        assert stream.text == "ab"


@pytest.mark.parametrize("how", ["aclose", "async with", "break and del", "cycle", "cancelled collect"])
async def test_leaving_a_stream_cancels_it_on_the_server(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Nobody reads any more: the model stops, and the connection goes on for others."""
    server = ScriptedServer(Answer("a", "b", "c", endless=True), Answer("next"))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True)
        async for _ in stream:
            break
        if how == "aclose":
            await stream.aclose()
        elif how == "async with":
            async with stream:
                pass
        elif how == "break and del":
            del stream
        elif how == "cycle":
            loop: list[Any] = [stream]
            loop.append(loop)
            del stream, loop
            gc.collect()
        else:
            with trio.move_on_after(1):
                await stream.collect()
        await trio.sleep(1)
        assert server.cancelled == [1]
        assert (await client.complete(prompt="y")).text == "next"


async def test_closed_stream_says_so() -> None:
    """Reading after leaving is a mistake, and not an end."""
    async with streaming(Answer("a", "b")) as (_, _, stream):
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await stream.receive()


async def test_finished_stream_left_is_not_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """There is nothing to cancel after the end, however the stream is left."""
    async with streaming(Answer("a")) as (server, _, stream):
        await stream.collect()
        await stream.aclose()
        del stream
        gc.collect()
        await trio.sleep(1)
        assert server.cancelled == []


async def test_cancel_lets_the_last_chunk_arrive(autojump_clock: trio.testing.MockClock) -> None:
    """``cancel`` ends the answer in order: pieces on their way, then "cancelled" with usage."""
    async with streaming(Answer(*"abcdef", delay_s=1)) as (server, _, stream):
        chunks = []
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.delta == "b":
                stream.cancel()
                stream.cancel()
        assert "".join(chunk.delta for chunk in chunks) == "ab"
        assert chunks[-1].finish_reason == "cancelled"
        assert chunks[-1].usage is not None
        assert server.cancelled == [1]


async def test_late_frames_of_an_abandoned_stream_disturb_nobody() -> None:
    """What still arrives is dropped and acknowledged; the neighbour reads on."""
    many = [str(number) for number in range(500)]
    server = ScriptedServer(Answer(*many), Answer(*many))
    async with AsyncSeedanceClient(connector=server) as client:
        left = await client.complete(prompt="x", stream=True)
        read = await client.complete(prompt="y", stream=True)
        await left.receive()
        await left.aclose()
        assert (await read.collect()).text == "".join(many)


async def test_read_cancelled_again_and_again_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A read in ``move_on_after`` can be repeated until something comes."""
    pieces = [str(number) for number in range(20)]
    async with streaming(Answer(*pieces, delay_s=0.35)) as (_, _, stream):
        taken = []
        while True:
            with trio.move_on_after(0.1):
                chunk = await stream.receive()
                if chunk is None:
                    break
                taken.append(chunk.delta)
        assert taken == [*pieces, ""]


async def test_chunks_are_stamped_when_they_arrive_and_not_when_they_are_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Gaps between tokens can be measured by a reader that is late."""
    server = ScriptedServer(Answer(*"abc", delay_s=1))
    async with AsyncSeedanceClient(connector=server, clock=trio.current_time) as client:
        stream = await client.complete(prompt="x", stream=True)
        await trio.sleep(10)
        stamps = [chunk.received_at async for chunk in stream]
    assert [later - stamps[0] for later in stamps] == pytest.approx([0, 1, 2, 3])


async def test_repr_says_how_far_it_is() -> None:
    """For debugging; no text of the answer in it."""
    async with streaming(Answer("secret")) as (_, _, stream):
        await stream.collect()
        assert repr(stream) == "<AsyncStream 1: 6 characters, stop>"


async def test_collect_of_a_stream_whose_end_another_reader_took_is_an_error() -> None:
    """A shared stream has one end, and a half answer never passes for a whole one."""
    async with streaming(Answer("a")) as (_, _, stream):
        while await stream._reading._generation.receive() is not None:
            pass
        with pytest.raises(StreamClosed, match="another reader"):
            await stream.collect()


@pytest.mark.slow
@given(plans=reader_plans)
def test_streams_are_whole_or_prefixes_whatever_their_readers_do(
    plans: list[tuple[list[str], str, int, float]],
) -> None:
    """Nobody gets another's text, a hole or a doubled piece, and nothing is left over."""
    server = ScriptedServer(respond=lambda request: Answer(*plans[int(request.prompt or "")][0]))

    async def read(client: AsyncSeedanceClient, number: int) -> None:
        pieces, how, count, pause_s = plans[number]
        stream = await client.complete(prompt=str(number), stream=True)
        taken: list[str] = []
        reason = None
        async for chunk in stream:
            taken.append(chunk.delta)
            reason = chunk.finish_reason
            await trio.sleep(pause_s)
            if how == "cancel" and len(taken) == count:
                stream.cancel()
            elif how != "read" and len(taken) == count:
                break
        whole = "".join(pieces)
        assert stream.text == "".join(taken)
        assert whole.startswith(stream.text)
        if reason == "stop":
            assert stream.text == whole
        else:
            assert how != "read"
        if how == "close":
            await stream.aclose()

    async def main() -> None:
        async with AsyncSeedanceClient(connector=server) as client:
            async with trio.open_nursery() as nursery:
                for number in range(len(plans)):
                    nursery.start_soon(read, client, number)
            await trio.sleep(1)
            for session in client._sessions:
                assert not session._generations._live
                assert not session._generations._streams
                assert not session._generations._asked
                assert session._generations.places.borrowed_tokens == 0
        assert server.connections == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

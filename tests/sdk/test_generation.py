"""The receiving half of a stream: bounded, acknowledged when taken, and never silently short."""

from __future__ import annotations

import hashlib

import pytest
import trio
import trio.testing

from seedance_sdk.errors import ConnectionLost, EngineFailed, ProtocolError, StreamClosed, Unsupported
from seedance_sdk.generation import Generation
from seedance_sdk.limits import Limits
from seedance_sdk.parameters import Request, ResumeRequest, complete_request, resume_request
from seedance_sdk.patience import Patience
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import (
    Delta,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    StageTiming,
    Usage,
)
from seedance_wire.running_digest import RunningDigest
from tests.sdk.hand_server import unheard


class Owner:
    """Records what a generation asks of its session."""

    def __init__(self) -> None:
        self.cancels = 0
        self.processed: list[tuple[int, int]] = []

    def request_cancel(self, generation: Generation) -> None:
        self.cancels += 1

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        self.processed.append((stream_id, frame_id))

    def make_bookmark(
        self, stream_id: int, *, last_processed_id: int, offset: int, digest: RunningDigest
    ) -> Bookmark:
        return Bookmark(
            session_id="s",
            resume_token=b"t",
            stream_id=stream_id,
            last_processed_id=last_processed_id,
            offset=offset,
            digest16=digest.prefix,
        )


def started(
    limits: Limits | None = None, request: Request | ResumeRequest | None = None, *, kept: bool = True
) -> tuple[Generation, Owner]:
    owner = Owner()
    generation = Generation(
        request or complete_request("x", None, {}),
        float("inf"),
        owner,
        limits or Limits(),
        clock=lambda: 7.5,
        times=unheard(),
        patience=Patience(),
    )
    generation.accept(3, "s", kept=kept)
    return generation, owner


def delta(frame_id: int, text: str = "a", offset: int = 0) -> Delta:
    return Delta(stream_id=3, id=frame_id, epoch=1, offset=offset, text=text)


def flush(frame_id: int, reason: FinishReason | None = None) -> Flush:
    final = None
    if reason is not None:
        usage = Usage(prompt_tokens=1, completion_tokens=2)
        final = Final(finish_reason=reason, usage=usage, timing=StageTiming(), digest=bytes(32), stop="s")
    return Flush(stream_id=3, id=frame_id, epoch=1, offset=0, final=final)


def failure(frame_id: int) -> Error:
    return Error(stream_id=3, id=frame_id, epoch=1, offset=0, code=ErrorCode.ENGINE_FAILED, message="gone")


async def test_generation_hands_out_what_arrived_in_order() -> None:
    """Chunks say what the frames said, and when they came."""
    generation, _ = started()
    generation.deliver(delta(1, "é"))
    generation.deliver(flush(2, FinishReason.LENGTH))
    first, last, end = [await generation.receive() for _ in range(3)]
    assert first is not None
    assert last is not None
    assert end is None
    assert (first.delta, first.id, first.received_at, first.finish_reason) == ("é", 1, 7.5, None)
    assert (last.delta, last.id, last.finish_reason, last.stop) == ("", 2, "length", "s")
    assert await generation.receive() is None


async def test_generation_acknowledges_when_taken_and_not_before() -> None:
    """An ack means that the application has it."""
    generation, owner = started()
    generation.deliver(delta(1))
    generation.deliver(delta(2))
    assert owner.processed == []
    await generation.receive()
    assert owner.processed == [(3, 1)]


async def test_generation_acknowledges_a_flush_that_only_closes_a_segment() -> None:
    """It holds nothing for the application, but it is a frame of the window."""
    generation, owner = started()
    generation.deliver(flush(1))
    generation.deliver(delta(2))
    chunk = await generation.receive()
    assert chunk is not None
    assert chunk.id == 2
    assert owner.processed == [(3, 1), (3, 2)]


async def test_generation_holds_a_full_window_and_not_a_frame_more() -> None:
    """A server that sends beyond the window breaks the protocol; memory stays bounded."""
    generation, _ = started()
    for frame_id in range(1, 129):
        generation.deliver(delta(frame_id))
    with pytest.raises(ProtocolError, match="128 frames"):
        generation.deliver(delta(129))


async def test_generation_refuses_a_last_frame_beyond_the_window_and_is_not_taken_for_complete() -> None:
    """A violation on the last frame must not look like a clean end."""
    generation, _ = started(Limits(max_buffered_frames=1))
    generation.deliver(delta(1))
    with pytest.raises(ProtocolError) as caught:
        generation.deliver(flush(2, FinishReason.STOP))
    generation.fail(caught.value)
    await generation.receive()
    with pytest.raises(ProtocolError):
        await generation.receive()


async def test_generation_bounds_the_bytes_of_what_is_not_taken() -> None:
    """Few but huge frames are bounded too, and taking them makes room."""
    generation, _ = started(Limits(max_buffered_bytes=100))
    for frame_id in range(1, 4):
        generation.deliver(delta(frame_id, "é" * 50))
        await generation.receive()
    generation.deliver(delta(4, "é" * 50))
    with pytest.raises(ProtocolError, match="102 bytes"):
        generation.deliver(delta(5, "é"))


async def test_generation_bounds_a_whole_answer() -> None:
    """A server that never ends cannot fill the memory of one that collects."""
    generation, _ = started(Limits(max_response_bytes=100))
    generation.deliver(delta(1, "a", offset=99))
    with pytest.raises(ProtocolError, match="100 bytes"):
        generation.deliver(delta(2, "a", offset=100))


@pytest.mark.parametrize("how", ["error_frame", "lost"])
async def test_generation_gives_what_arrived_and_then_its_error_each_time(how: str) -> None:
    """Nothing received is lost to a failure, and a failure is never mistaken for an end."""
    generation, owner = started()
    generation.deliver(delta(1))
    if how == "lost":
        generation.fail(ConnectionLost("cut", close_code=1006))
    else:
        generation.deliver(failure(2))
    assert await generation.receive() is not None
    errors = []
    for _ in range(2):
        with pytest.raises((EngineFailed, ConnectionLost)) as caught:
            await generation.receive()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert owner.processed == ([(3, 1)] if how == "lost" else [(3, 1), (3, 2)])


async def test_generation_failed_after_its_end_ended_well() -> None:
    """A connection that is lost after the last frame costs the answer nothing."""
    generation, _ = started()
    generation.deliver(flush(1, FinishReason.STOP))
    generation.fail(ConnectionLost("cut"))
    chunk = await generation.receive()
    assert chunk is not None
    assert chunk.finish_reason == "stop"
    assert await generation.receive() is None


async def test_generation_abandoned_discards_acknowledges_and_cancels_once() -> None:
    """The server's window keeps moving, so its end arrives; nothing is kept."""
    generation, owner = started()
    generation.deliver(delta(1))
    generation.deliver(delta(2))
    generation.abandon()
    generation.abandon()
    generation.deliver(delta(3))
    generation.deliver(flush(4, FinishReason.CANCELLED))
    assert owner.cancels == 1
    assert owner.processed == [(3, 2), (3, 3), (3, 4)]
    assert generation.ended
    with pytest.raises(StreamClosed):
        await generation.receive()


async def test_generation_abandoned_wakes_its_readers() -> None:
    """A reader that waits in another task is not left waiting."""
    generation, _ = started()
    woken = 0

    async def read() -> None:
        nonlocal woken
        with pytest.raises(StreamClosed):
            await generation.receive()
        woken += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        generation.abandon()
    assert woken == 3


async def test_generation_abandoned_before_it_began_is_cancelled_when_it_begins() -> None:
    """A caller that left while the request was on its way leaves nothing running."""
    owner = Owner()
    request = complete_request("x", None, {})
    generation = Generation(request, float("inf"), owner, Limits(), lambda: 0.0, unheard(), Patience())
    generation.abandon()
    owner.cancels = 0
    generation.accept(3, "s", kept=True)
    assert owner.cancels == 1


async def test_generation_ended_is_not_cancelled() -> None:
    """There is nothing left to cancel."""
    generation, owner = started()
    generation.deliver(flush(1, FinishReason.STOP))
    generation.cancel()
    generation.abandon()
    assert owner.cancels == 0


async def test_generation_gives_each_chunk_to_one_of_its_readers() -> None:
    """Several tasks may share a stream; no chunk is doubled, none is lost, all see the end."""
    generation, _ = started()
    taken: list[int] = []

    async def read() -> None:
        while (chunk := await generation.receive()) is not None:
            taken.append(chunk.id)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read)
        for frame_id in range(1, 101):
            generation.deliver(delta(frame_id))
            await trio.lowlevel.checkpoint()
        generation.deliver(flush(101, FinishReason.STOP))
    assert sorted(taken) == list(range(1, 102))


async def test_generation_loses_nothing_to_a_cancelled_read(autojump_clock: trio.testing.MockClock) -> None:
    """Cancellation takes a chunk or leaves it, never half."""
    generation, _ = started()
    with trio.move_on_after(1):
        await generation.receive()
    generation.deliver(delta(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await generation.receive()
    chunk = await generation.receive()
    assert chunk is not None
    assert chunk.id == 1


async def test_generation_deadline_is_what_is_left_of_it(autojump_clock: trio.testing.MockClock) -> None:
    """The server is told how much time remains when the request leaves, not when it was made."""
    request, deadline = complete_request("x", None, {}), trio.current_time() + 2
    generation = Generation(request, deadline, Owner(), Limits(), lambda: 0.0, unheard(), Patience())
    await trio.sleep(0.5)
    assert generation.deadline_ms == 1500
    await trio.sleep(5)
    assert generation.deadline_ms == 1
    assert started()[0].deadline_ms is None


async def test_generation_bookmark_is_what_was_taken_and_not_what_arrived() -> None:
    """A bookmark names the last frame that the application has, with the digest of the text up to there."""
    generation, _ = started()
    generation.deliver(delta(1, "é"))
    generation.deliver(flush(2))
    generation.deliver(delta(3, "b", offset=2))
    generation.deliver(delta(4, "c", offset=3))
    marks = [generation.bookmark]
    for _ in range(2):
        await generation.receive()
        marks.append(generation.bookmark)
    assert [(mark.last_processed_id, mark.offset) for mark in marks] == [(0, 0), (1, 2), (3, 3)]
    assert [mark.digest16 for mark in marks] == [
        hashlib.sha256(text.encode()).digest()[:16] for text in ("", "é", "éb")
    ]


async def test_generation_that_goes_on_from_a_bookmark_counts_from_there() -> None:
    """Positions go on; the digest of a text whose beginning nobody here saw is not guessed."""
    text = Bookmark(
        session_id="s", resume_token=b"t", stream_id=3, last_processed_id=5, offset=9, digest16=bytes(16)
    ).to_str()
    generation, _ = started(request=resume_request(text, {}))
    assert generation.bookmark.to_str() == text
    generation.deliver(delta(6, "é", offset=9))
    await generation.receive()
    assert (generation.bookmark.last_processed_id, generation.bookmark.offset) == (6, 11)
    assert generation.bookmark.digest16 is None


def test_generation_that_is_not_kept_has_no_bookmark() -> None:
    """A promise that the server does not make is not made here either."""
    generation, _ = started(kept=False)
    with pytest.raises(Unsupported, match="does not keep"):
        _ = generation.bookmark


async def test_generation_holds_a_window_for_each_connection() -> None:
    """A reader that took nothing during an outage gets no protocol error for what the next server sends."""
    generation, _ = started()
    for frame_id in range(1, 101):
        generation.deliver(delta(frame_id, offset=frame_id - 1))
    generation.note_reconnect(1.0)
    for frame_id in range(101, 229):
        generation.deliver(delta(frame_id, offset=frame_id - 1))
    for frame_id in range(1, 101):  # of the old connection: they make no room in the new window
        chunk = await generation.receive()
        assert chunk is not None
        assert chunk.id == frame_id
    with pytest.raises(ProtocolError, match="128 frames"):
        generation.deliver(delta(229))
    assert generation.reconnects == 1


async def test_generation_detached_cancels_and_acknowledges_nothing() -> None:
    """Who comes next decides about the stream; who left takes nothing with it."""
    generation, owner = started()
    generation.deliver(delta(1))
    await generation.receive()
    generation.deliver(delta(2))
    generation.detach()
    generation.deliver(delta(3))
    generation.abandon()
    generation.deliver(flush(4, FinishReason.STOP))
    assert (owner.cancels, owner.processed, generation.ended) == (0, [(3, 1)], True)
    with pytest.raises(StreamClosed):
        await generation.receive()

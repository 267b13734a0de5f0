"""Tests of `seedance_server.outbox`."""

import pytest
import trio
import trio.testing

from seedance_server.errors import OutboxClosed
from seedance_server.outbox import Outbox, frame_size
from seedance_wire.messages import Delta, GoAway, TokenLogprob


def delta(text: str = "x", stream: int = 1, id_: int = 1) -> Delta:
    return Delta(stream_id=stream, id=id_, epoch=1, offset=0, text=text)


def outbox(**more: int) -> Outbox:
    return Outbox(**({"frame_bytes": 1000, "control_messages": 3, "batch_bytes": 500} | more))


async def test_outbox_hands_out_all_waiting_frames_as_one_batch() -> None:
    """Frames of all streams coalesce, in order; an answer between them keeps its place."""
    box = outbox()
    for index in range(1, 4):
        await box.put_frame(delta(id_=index))
    box.put_control(GoAway(reason="r"))
    await box.put_frame(delta(id_=4))
    batches = [await box.take() for _ in range(3)]
    assert [[getattr(m, "id", "control") for m in batch.messages] for batch in batches] == [
        [1, 2, 3],
        ["control"],
        [4],
    ]


async def test_outbox_keeps_a_batch_within_its_bytes() -> None:
    """A batch leaves in one send, so it is bounded; a frame above the bound goes alone."""
    box = outbox(frame_bytes=10_000)
    for text in ("a" * 300, "b" * 300, "c" * 3000, "d"):
        await box.put_frame(delta(text))
    sizes = [len((await box.take()).messages) for _ in range(4)]
    assert sizes == [1, 1, 1, 1]


async def test_outbox_makes_streams_wait_in_turn_when_it_is_full() -> None:
    """Memory is bounded by bytes, and no stream is passed over."""
    box = outbox(frame_bytes=100)
    arrived = []

    async def put(stream: int) -> None:
        await box.put_frame(delta("x" * 40, stream))
        arrived.append(stream)

    async with trio.open_nursery() as nursery:
        for stream in range(1, 4):
            nursery.start_soon(put, stream)
            await trio.testing.wait_all_tasks_blocked()
        assert arrived == [1]
        await box.take()
        await trio.testing.wait_all_tasks_blocked()
        assert arrived == [1, 2]
        assert box.waiting_bytes <= 100
        await box.take()
    assert arrived == [1, 2, 3]


async def test_outbox_puts_answers_without_waiting_until_they_pile_up() -> None:
    """The reader never blocks; a peer that lets answers pile up is given up."""
    box = outbox(frame_bytes=10)
    await box.put_frame(delta("x" * 100))
    for _ in range(3):
        box.put_control(GoAway(reason="r"))
    with pytest.raises(OutboxClosed):
        box.put_control(GoAway(reason="r"))


async def test_outbox_drains_after_close_and_wakes_everybody() -> None:
    """Closed: nothing more in, what waits still comes out, nobody waits for ever."""
    box = outbox(frame_bytes=10)
    await box.put_frame(delta("x" * 100))
    async with trio.open_nursery() as nursery:

        async def blocked() -> None:
            with pytest.raises(OutboxClosed):
                await box.put_frame(delta())

        nursery.start_soon(blocked)
        await trio.testing.wait_all_tasks_blocked()
        box.close()
    assert await box.take() is not None
    assert await box.take() is None
    with pytest.raises(OutboxClosed):
        box.put_control(GoAway(reason="r"))


async def test_outbox_loses_nothing_when_take_or_put_is_cancelled() -> None:
    """A cancelled take leaves the batch, a cancelled put leaves no frame."""
    box = outbox(frame_bytes=10)
    await box.put_frame(delta("x" * 100))
    with trio.CancelScope() as scope:
        scope.cancel()
        await box.take()
    with trio.move_on_after(0):
        await box.put_frame(delta("late"))
    batch = await box.take()
    assert [m.text for m in batch.messages] == ["x" * 100]
    assert box.waiting_bytes == 0


def test_frame_size_counts_bytes_not_characters() -> None:
    """Accounting is in bytes of UTF-8, log probabilities included."""
    assert frame_size(delta("🚀")) - frame_size(delta("")) == 4
    with_top = Delta(
        stream_id=1,
        id=1,
        epoch=1,
        offset=0,
        text="",
        logprobs=(TokenLogprob(token_id=1, text="ab", logprob=-1.0, top=((1, "ab", -1.0),)),),
    )
    assert frame_size(with_top) - frame_size(delta("")) >= 2 * (2 + 16)


async def test_outbox_hands_out_answers_together() -> None:
    """Whoever writes them does it in one go; a bounded number, and never past a frame."""
    box = outbox(control_messages=100)
    for number in range(20):
        box.put_control(GoAway(reason=str(number)))
    await box.put_frame(delta())
    box.put_control(GoAway(reason="last"))
    batches = [await box.take() for _ in range(4)]
    assert [len(batch.messages) for batch in batches] == [16, 4, 1, 1]
    assert [batch.has_frames for batch in batches] == [False, False, True, False]
    assert [answer.reason for answer in batches[0].messages + batches[1].messages] == list(
        map(str, range(20))
    )
    for number in range(100):  # those that were taken make room
        box.put_control(GoAway(reason=str(number)))

"""Tests of `seedance_server.sender`."""

import hashlib
from contextlib import asynccontextmanager

import pytest
import trio

from seedance_server.engine.sequence import SequenceOutput
from seedance_server.errors import OutboxClosed
from seedance_server.frame_draft import Ending, Position, draft_ending, draft_frames
from seedance_server.frame_source import FrameSource
from seedance_server.outbox import Outbox, frame_size
from seedance_server.sender import Sender
from seedance_server.tail import FrameTail, TailFrame
from seedance_wire.codec import SUBPROTOCOLS, make_codec
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import Delta, Error, ErrorCode, Flow, FlowAction, TokenLogprob


class Sending:
    """A sender at work on a tail, and what it has put into its outbox."""

    def __init__(
        self,
        count: int,
        *,
        after_id: int = 0,
        taken_id=None,
        digest=None,
        ends: bool = True,
        out_of_turn=False,
    ):
        outputs = [SequenceOutput(id=1, text=f"{number} é", token_ids=(1,)) for number in range(count)]
        made = draft_frames(1, Position(), outputs, segment_bytes=1 << 20)
        end = draft_ending(
            1, made.position, Ending(ErrorCode.INTERNAL, "", False), (), out_of_turn=out_of_turn
        )
        self.made = [entry.frame for entry in (*made.frames, *end.frames)]
        self.tail = FrameTail(0, 1 << 20)
        self.tail.publish(made.frames)
        self.end = end.frames
        if ends:
            self.tail.publish(self.end)
        self.outbox = Outbox(frame_bytes=1 << 20, control_messages=8, batch_bytes=1 << 16)
        self.frames, self.noted, self.lasts, self.written = [], [], [], 0
        self.sender = Sender(
            FrameSource(None, "s", 1, self.tail),
            self.outbox,
            stream_id=9,
            epoch=4,
            after_id=after_id,
            taken_id=after_id if taken_id is None else taken_id,
            digest=digest,
            on_sent=lambda frame_id, digest: self.noted.append((frame_id, digest)),
            on_last=lambda: self.lasts.append(self.sender.sent_id),
            on_first_written=self.note_written,
        )

    def note_written(self) -> None:
        self.written += 1

    async def write(self) -> None:
        while (batch := await self.outbox.take()) is not None:
            self.frames += batch.messages
            batch.written()

    @asynccontextmanager
    async def at_work(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            nursery.start_soon(self.sender.run)
            yield self
            nursery.cancel_scope.cancel()


def after(sending: Sending, frame_id: int) -> TailFrame:
    """The frame behind it."""
    delta = Delta(stream_id=1, id=frame_id + 1, epoch=1, offset=0, text="x")
    return TailFrame(delta, None, frame_size(delta))


async def test_sender_never_sends_more_than_the_window_takes(autojump_clock) -> None:
    """32 frames, then nothing; each acknowledgement lets it go on; each frame once, as this connection's."""
    async with Sending(300).at_work() as sending:
        sender = sending.sender
        await trio.sleep(60)
        assert len(sending.frames) == sender.in_flight == sender.window_size == 32
        assert sender.room == 0
        while len(sending.frames) < 301:
            sender.acknowledge(sending.frames[-1].id, trio.current_time())
            await trio.sleep(0.01)
            assert sender.in_flight <= sender.window_size <= 128
        assert [frame.id for frame in sending.frames] == list(range(1, 302))
        assert {(frame.stream_id, frame.epoch) for frame in sending.frames} == {(9, 4)}
        assert [getattr(frame, "text", "") for frame in sending.frames] == [
            getattr(frame, "text", "") for frame in sending.made
        ]


@pytest.mark.parametrize("held", [1, 31, 32, 33, 90])
async def test_sender_counts_what_waits_in_the_client_since_an_earlier_connection(
    autojump_clock, held
) -> None:
    """A cut gives a reader that stands still nothing: what it holds and what is sent are one window."""
    async with Sending(300, after_id=100, taken_id=100 - held).at_work() as sending:
        await trio.sleep(60)
        more = max(32 - held, 0)
        assert [frame.id for frame in sending.frames] == list(range(101, 101 + more))
        assert (sending.sender.in_flight, sending.sender.room) == (32, 0)
        for acknowledged_id in range(101 - held, 101):  # the application takes what it has, one by one
            sending.sender.acknowledge(acknowledged_id, trio.current_time())
            await trio.sleep(1)
            last_id = sending.frames[-1].id if sending.frames else 100
            assert last_id == 100 or last_id - acknowledged_id <= 32
        assert last_id - 100 == sending.sender.in_flight >= 16
        assert [frame.id for frame in sending.frames] == list(range(101, last_id + 1))


async def test_sender_lets_go_at_once_of_what_was_taken_while_it_began(autojump_clock) -> None:
    """One ACK for all that the client held frees all of it, also what was not counted yet."""
    async with Sending(300, after_id=100, taken_id=0).at_work() as sending:
        await trio.sleep(1)
        assert sending.frames == []
        sending.sender.acknowledge(100, trio.current_time())
        await trio.sleep(1)
        assert [frame.id for frame in sending.frames[:2]] == [101, 102]
        assert sending.sender.in_flight == len(sending.frames) == sending.sender.window_size
        with pytest.raises(RemoteProtocolError):
            sending.sender.acknowledge(sending.frames[-1].id + 1, trio.current_time())


async def test_sender_begins_behind_any_frame_with_a_window_of_its_own(autojump_clock) -> None:
    """What an earlier connection was sent doesn't count; acknowledging it is no error."""
    async with Sending(100, after_id=70).at_work() as sending:
        sending.sender.acknowledge(70, 0)
        await trio.sleep(1)
        assert [frame.id for frame in sending.frames] == list(range(71, 102))
        sending.sender.acknowledge(60, trio.current_time())
        assert sending.sender.in_flight == 31
        sending.sender.acknowledge(101, trio.current_time())
        assert sending.sender.in_flight == 0


async def test_sender_refuses_an_acknowledgement_of_what_was_never_sent(autojump_clock) -> None:
    """A client that acknowledges the future breaks the protocol."""
    async with Sending(100).at_work() as sending:
        await trio.sleep(5)
        with pytest.raises(RemoteProtocolError):
            sending.sender.acknowledge(33, trio.current_time())
        sending.sender.acknowledge(32, trio.current_time())
        sending.sender.acknowledge(1, trio.current_time())


@pytest.mark.parametrize("out_of_turn", [False, True])
async def test_sender_lets_only_an_end_from_outside_pass_a_full_window(autojump_clock, out_of_turn) -> None:
    """Who has stopped reading could never be told otherwise; its acknowledgement is no error then."""
    async with Sending(32, out_of_turn=out_of_turn).at_work() as sending:
        await trio.sleep(5)
        assert len(sending.frames) == 32 + out_of_turn
        sending.sender.acknowledge(len(sending.frames), trio.current_time())
        await trio.sleep(0.01)
        assert len(sending.frames) == 33


async def test_sender_tells_what_it_sent_with_the_texts_digest(autojump_clock) -> None:
    """Its own where it knows the beginning, else the tail's; before the last frame it says so."""
    for after_id, digest in ((0, hashlib.sha256()), (3, None)):
        async with Sending(20, after_id=after_id, digest=digest).at_work() as sending:
            await trio.sleep(1)
            for frame_id, noted in sending.noted:
                text = "".join(frame.text for frame in sending.made[:frame_id] if isinstance(frame, Delta))
                assert noted == hashlib.sha256(text.encode()).digest()[:16]
            assert [frame_id for frame_id, _ in sending.noted] == list(range(after_id + 1, 21))
            assert sending.lasts == [20]
            assert sending.written == (after_id == 0)


async def test_sender_waits_for_frames_to_come_and_ends_with_the_last(autojump_clock) -> None:
    """It returns after the terminal frame, never before."""
    sending = Sending(3, ends=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.write)
        with trio.move_on_after(5) as patience:
            await sending.sender.run()
        assert patience.cancelled_caught
        assert sending.sender.sent_id == 3
        sending.tail.publish(sending.end)
        await sending.sender.run()
        assert sending.sender.sent_id == 4
        nursery.cancel_scope.cancel()


async def test_sender_lets_a_frame_leave_without_a_wake_up_while_it_rests(autojump_clock) -> None:
    """With no checkpoint between: a wake-up of each stream for each token is what serving would cost most."""
    sending = Sending(3, ends=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.sender.run)
        await trio.testing.wait_all_tasks_blocked()
        assert sending.sender.sent_id == 3
        sending.tail.publish([after(sending, 3)])
        assert (sending.sender.sent_id, sending.sender.in_flight) == (4, 4)
        nursery.cancel_scope.cancel()
        sending.tail.publish([after(sending, 4)])
        assert sending.sender.sent_id == 4
    sending.tail.publish([after(sending, 5)])
    assert sending.sender.sent_id == 4
    assert [frame_id for frame_id, _ in sending.noted] == [1, 2, 3, 4]


@pytest.mark.parametrize("outbox_bytes", [1 << 20, 200])
async def test_sender_keeps_the_order_where_something_is_in_a_frames_way(
    autojump_clock, outbox_bytes
) -> None:
    """A full window or outbox makes the task wait, and what comes meanwhile waits behind it."""
    sending = Sending(0, ends=False)
    sending.outbox = sending.sender._outbox = Outbox(
        frame_bytes=outbox_bytes, control_messages=8, batch_bytes=1 << 16
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.sender.run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(200):
            sending.tail.publish([after(sending, number)])
        sent = sending.sender.sent_id
        assert sent == (32 if outbox_bytes > 200 else 4)
        nursery.start_soon(sending.write)
        while sending.sender.sent_id < 200:
            await trio.sleep(0.01)
            sending.sender.acknowledge(sending.sender.sent_id, trio.current_time())
        await trio.sleep(0.01)
        assert [frame.id for frame in sending.frames] == list(range(1, 201))
        nursery.cancel_scope.cancel()


async def test_sender_tells_the_pace_while_its_stream_lasts(autojump_clock) -> None:
    """With the window of that moment; not behind the end, and never where it would be in the way."""
    async with Sending(20, ends=False).at_work() as sending:
        await trio.sleep(1)
        sending.sender.note_flow(FlowAction.PAUSE)
        await trio.sleep(1)
        assert sending.frames[-1] == Flow(stream_id=9, action=FlowAction.PAUSE, window=32)
        sending.tail.publish(sending.end)
        await trio.sleep(1)
        sending.sender.note_flow(FlowAction.RUN)
        await trio.sleep(1)
        assert isinstance(sending.frames[-1], Error)
    sending = Sending(0)
    sending.outbox.close()
    sending.sender.note_flow(FlowAction.RUN)


async def test_sender_ends_with_its_connection(autojump_clock) -> None:
    """A closed outbox ends it."""
    sending = Sending(3)
    sending.outbox.close()
    with pytest.raises(OutboxClosed):
        await sending.sender.run()


def test_no_encoding_is_wider_than_the_sender_thinks() -> None:
    """A frame that is small by `frame_size` is never measured, so the factor must hold."""
    for text in ("", "\x01", "\x01" * 40, '"', "é", "🚀"):
        entry = TokenLogprob(
            token_id=2**31 - 1, text=text, logprob=-12.345678901, top=((2**31 - 1, text, -1.0000000001),) * 20
        )
        for frame in (
            Delta(stream_id=9, id=10**9, epoch=9, offset=10**9, text=text * 1000, token_count=10**6),
            Delta(stream_id=9, id=1, epoch=9, offset=0, text=text, token_count=60, logprobs=(entry,) * 60),
        ):
            sizes = [len(make_codec(name).encode([frame])) for name in SUBPROTOCOLS]
            assert max(sizes) <= 7 * frame_size(frame)


async def test_sender_ends_a_stream_whose_frame_fits_no_message(autojump_clock) -> None:
    """One ERROR for this stream in the frame's place, and the producer is told; nobody else is touched."""
    sending = Sending(1, ends=False)
    huge = Delta(stream_id=1, id=2, epoch=1, offset=4, text="\x01" * 50_000)  # none is drafted like this
    sending.tail.publish([TailFrame(huge, None, frame_size(huge))])
    told = []
    sending.sender._on_unsendable = lambda code, message: told.append(code)
    async with sending.at_work():
        await trio.sleep(1)
    text, error = sending.frames
    assert (text.id, error.id, error.offset, error.epoch) == (1, 2, 4, 4)
    assert (error.code, error.retryable, told) == (ErrorCode.INTERNAL, False, [ErrorCode.INTERNAL])

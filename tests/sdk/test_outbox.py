"""What a session has to say: order, pace, and nothing on a connection that is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from attrs import define, field

from seedance_sdk.outbox import Outbox
from seedance_wire.messages import Limits as ServerLimits


@define
class Core:
    """Stands for a `ClientSession`: what is given to it comes out as text."""

    said: list[str] = field(factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def acknowledge(self, pairs: object) -> None:
        self.said.append(f"ack {pairs}")

    def bye(self) -> None:
        self.said.append("bye")

    def data_to_send(self) -> list[str]:
        due, self.said = self.said, []
        return due


@define
class Line:
    """A connection: what was sent on it, and when."""

    sent: list[str] = field(factory=list)
    times: list[float] = field(factory=list)
    takes_s: float = 0.0

    async def send(self, data: bytes | str) -> None:
        await trio.sleep(self.takes_s)
        assert isinstance(data, str)
        self.sent.append(data)
        self.times.append(trio.current_time())


def nothing() -> None:
    """There are no events here."""


def made() -> tuple[Core, Outbox]:
    core = Core()
    return core, Outbox(core, ack_interval_s=0.02, ack_delay_s=0.1)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(outbox: Outbox, line: Line) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.serve, "hello", line.send, nothing)
        await trio.testing.wait_all_tasks_blocked()
        yield nursery
        nursery.cancel_scope.cancel()


async def test_outbox_says_hello_and_then_nothing_until_it_is_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing but HELLO leaves before WELCOME, in the order in which it was wanted."""
    core, outbox = made()
    line = Line()
    outbox.add(partial(core.say, "first"))
    outbox.note_processed(1, 5)
    async with serving(outbox, line):
        assert line.sent == ["hello"]
        outbox.add(partial(core.say, "second"))
        outbox.open()
        await trio.sleep(0.2)
        assert line.sent == ["hello", "first", "second", "ack ((1, 5),)"]


async def test_outbox_makes_a_message_when_its_turn_comes(autojump_clock: trio.testing.MockClock) -> None:
    """A step that has nothing to say any more leaves no trace."""
    core, outbox = made()
    line = Line(takes_s=1)
    wanted = ["a", "b"]
    async with serving(outbox, line):
        outbox.open()
        for text in ("a", "b"):
            outbox.add(lambda text=text: core.say(text) if text in wanted else None)
        await trio.sleep(1.5)
        wanted.remove("b")
        await trio.sleep(5)
    assert line.sent == ["hello", "a"]


async def test_outbox_acknowledges_the_last_of_each_stream_once_in_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However many frames were taken: one message in 20 ms, at once where there are four of a stream."""
    _, outbox = made()
    line = Line()
    async with serving(outbox, line):
        outbox.open()
        for number in range(1, 101):
            outbox.note_processed(1, number)
            outbox.note_processed(2, number)
            await trio.sleep(0.001)
        await trio.sleep(1)
        for number in range(1, 5):
            outbox.note_processed(3, number)
        await trio.testing.wait_all_tasks_blocked()
    assert line.sent[-2:] == ["ack ((1, 100), (2, 100))", "ack ((3, 4),)"]
    assert len(line.sent) <= 8
    gaps = [later - earlier for earlier, later in zip(line.times[1:], line.times[2:], strict=False)]
    assert min(gaps) >= 0.0199


async def test_outbox_acknowledges_few_frames_together_and_none_later_than_it_may(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A message tells of what came within a tenth of a second of the first, whatever the stream."""
    _, outbox = made()
    line = Line()
    async with serving(outbox, line):
        outbox.open()
        began = trio.current_time()
        for stream_id, frame_id in ((1, 1), (1, 2), (2, 9), (1, 3)):
            outbox.note_processed(stream_id, frame_id)
            await trio.sleep(0.03)
        assert line.sent[1:] == ["ack ((1, 3), (2, 9))"]
        assert line.times[1] == pytest.approx(began + 0.1)
        outbox.note_processed(1, 4)
        await trio.sleep(1)
        assert line.sent[2:] == ["ack ((1, 4),)"]
        assert line.times[2] == pytest.approx(began + 0.22)


@pytest.mark.parametrize("bye", [True, False])
async def test_outbox_says_everything_before_it_leaves(
    bye: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Goodbye is the last word, and nothing where the session is to be kept."""
    core, outbox = made()
    line = Line()
    outbox.add(partial(core.say, "cancel"))
    outbox.note_processed(1, 5)
    outbox.finish(bye=bye)
    outbox.open()
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.serve, "hello", line.send, nothing)
            await trio.testing.wait_all_tasks_blocked()
            outbox.open()
    assert line.sent == ["hello", "cancel", "ack ((1, 5),)"] + ["bye"] * bye
    assert outbox.finishing


async def test_outbox_keeps_what_waits_for_the_next_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection that is over gets nothing more; what was not said is said on the next one."""
    core, outbox = made()
    first, second = Line(), Line()
    async with serving(outbox, first):
        outbox.open()
        outbox.shut()
        outbox.add(partial(core.say, "late"))
        outbox.note_processed(1, 5)
        await trio.testing.wait_all_tasks_blocked()
    async with serving(outbox, second):
        outbox.open()
        await trio.sleep(0.2)
    assert first.sent == ["hello"]
    assert second.sent == ["hello", "late", "ack ((1, 5),)"]


async def test_outbox_sends_nothing_more_once_it_was_shut_in_the_middle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of two messages that were due together the second stays unsent if the connection broke meanwhile."""
    core, outbox = made()
    line = Line(takes_s=1)

    def both() -> None:
        core.say("one")
        core.say("two")

    async with serving(outbox, line):
        outbox.open()
        outbox.add(both)
        await trio.sleep(1.5)
        outbox.shut()
        await trio.sleep(5)
    assert line.sent == ["hello", "one"]


async def test_outbox_woken_while_it_sends_looks_again(autojump_clock: trio.testing.MockClock) -> None:
    """What the core has to say after an event is never left lying until something else happens."""
    core, outbox = made()
    line = Line(takes_s=1)
    async with serving(outbox, line):
        outbox.open()
        outbox.add(partial(core.say, "one"))
        await trio.sleep(1.5)
        core.say("two")
        outbox.wake()
        await trio.sleep(5)
    assert line.sent == ["hello", "one", "two"]


async def test_outbox_keeps_to_the_servers_pace_and_acknowledges_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Half the burst at once, then nine tenths of the rate; a stream's window does not wait for that."""
    core, outbox = made()
    line = Line()
    async with serving(outbox, line):
        outbox.keep_pace(
            ServerLimits(
                max_message_bytes=1,
                max_streams=1,
                max_context_tokens=1,
                messages_per_second=10,
                message_burst=8,
            )
        )
        outbox.open()
        for number in range(22):
            outbox.add(partial(core.say, f"step {number}"))
        await trio.sleep(0.5)
        outbox.note_processed(1, 4)
        outbox.note_processed(1, 8)
        await trio.testing.wait_all_tasks_blocked()
        assert line.sent[-1] == "ack ((1, 8),)"
        await trio.sleep(1.55)
    steps = [when for text, when in zip(line.sent, line.times, strict=True) if "step" in text]
    assert [when - steps[0] for when in steps] == pytest.approx([0, 0, 0, 0, *(n / 9 for n in range(1, 19))])


async def test_outbox_keeps_to_the_pace_with_all_that_is_due_on_a_new_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What is resumed and sent again comes from the core at once, and must not be cut for it."""
    core, outbox = made()
    line = Line()
    limits = ServerLimits(
        max_message_bytes=1, max_streams=1, max_context_tokens=1, messages_per_second=10, message_burst=8
    )
    async with serving(outbox, line):
        outbox.keep_pace(limits)
        for number in range(22):
            core.say(f"step {number}")
        outbox.open()
        await trio.sleep(5)
    assert line.times[-1] - line.times[1] == pytest.approx(2)
    assert len(line.sent) == 23

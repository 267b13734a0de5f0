"""Tests of `seedance_server.http.event_stream`: every event once, in an order that a replay keeps."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.accounts import Account
from seedance_server.frame_source import FrameSource
from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.cursor import parse_cursor
from seedance_server.http.event_stream import EventStream
from seedance_server.http.reading import Reading
from seedance_server.http.shapes import Shape
from seedance_server.tenants import LOCAL, Rate, Tenant
from tests.server.http.test_reading import tail_of

SHAPE = Shape(
    answer=AnswerId(Kind.TEXT, "cmpl-1"), created_s=7, model="m", fingerprint=bytes(32), with_usage=True
)


async def events_of(counts: list[int], after: list[int], trailer: int = 0) -> list[tuple[str, str]]:
    """All events of an answer of so many pieces a choice, behind a place in it."""
    sent = b""

    async def send(message) -> None:
        nonlocal sent
        await trio.lowlevel.checkpoint()
        sent += message.get("body", b"")

    readings = []
    for index, (count, after_id) in enumerate(zip(counts, after, strict=True)):
        reading = Reading(index, FrameSource(None, "s", 1, tail_of(count)), None, after_id, gathers=False)
        if after_id == count + 1:
            await reading.read_end()
        readings.append(reading)
    stream = EventStream(SHAPE, readings, trailer, account=Account(LOCAL), send=send)
    await stream.run([], on_begun=lambda: None)
    blocks = [block for block in sent.decode().split("\n\n") if block and not block.startswith(":")]
    return [tuple(line.partition(": ")[2] for line in block.split("\n")) for block in blocks]


@given(counts=st.lists(st.integers(0, 70), min_size=1, max_size=3), data=st.data())
async def test_event_stream_goes_on_behind_every_event(counts: list[int], data) -> None:
    """What was sent and what follows is the whole, whichever event was the last."""
    whole = await events_of(counts, [0] * len(counts))
    assert len({name for name, _ in whole}) == len(whole)
    for cut in {data.draw(st.integers(1, len(whole))), len(whole) - 1, len(whole)}:
        positions = parse_cursor(whole[cut - 1][0], len(counts))
        trailer = max(0, positions[0] - (counts[0] + 1))
        positions[0] -= trailer
        rest = await events_of(counts, positions, trailer)
        assert sorted(data for _, data in whole[:cut] + rest) == sorted(data for _, data in whole)
        assert not {name for name, _ in rest} & {name for name, _ in whole[:cut]}


async def test_event_stream_waits_for_bandwidth(autojump_clock) -> None:
    """A tenant's quota slows it down like everything else that is sent to it."""
    account = Account(Tenant(name="slow", bytes_per_second=Rate(10_000, 10_000, 10_000)))
    began_s = trio.current_time()

    async def send(message) -> None:
        await trio.lowlevel.checkpoint()

    reading = Reading(0, FrameSource(None, "s", 1, tail_of(500)), None, 0, gathers=False)
    await EventStream(SHAPE, [reading], 0, account=account, send=send).run([], on_begun=lambda: None)
    assert trio.current_time() - began_s == pytest.approx(500 * 200 / 10_000, rel=0.4)

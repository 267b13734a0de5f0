"""Reported events as differences."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.errors import DecodeError, LocalProtocolError
from seedance_wire.event_delta import MAX_UNPACKED_BYTES, pack_events, unpack_events
from seedance_wire.messages import UserEvent
from tests.strategies import user_events

CLICK = UserEvent(timestamp=1_735_689_600_000, user_id=42, action="click", payload=b'{"x":10,"y":20}')
MOVED = UserEvent(timestamp=1_735_689_600_120, user_id=42, action="click", payload=b'{"x":11,"y":20}')


@given(events=st.lists(user_events, max_size=6).map(tuple), compress=st.booleans())
def test_events_come_back_as_they_were(events: tuple[UserEvent, ...], compress: bool) -> None:
    """Whatever their values, compressed or not."""
    assert unpack_events(pack_events(events, compress=compress), len(events)) == events


def test_event_like_the_one_before_takes_a_few_bytes() -> None:
    """Twelve hundredths of a second later, one digit further."""
    alone, both = (len(pack_events(events, compress=False)) for events in ([CLICK], [CLICK, MOVED]))
    assert both - alone == 2 + 1 + 2 + 4


def test_long_batch_is_compressed() -> None:
    """And a short one that would grow is not."""
    events = [
        UserEvent(timestamp=number, user_id=number % 7, action="click", payload=b"page %d" % (number % 9))
        for number in range(200)
    ]
    assert pack_events(events)[:1] == b"\x02"
    assert pack_events([CLICK])[:1] == b"\x01"


@pytest.mark.parametrize("events", [[CLICK, MOVED], [CLICK] * 60])
def test_every_truncation_is_an_error_or_fewer_events(events: list[UserEvent]) -> None:
    """A cut between two events reads as a shorter batch; nothing else does."""
    packed = pack_events(events)
    for length in range(len(packed)):
        try:
            read = unpack_events(packed[:length], 100)
        except DecodeError:
            continue
        assert list(read) == events[: len(read)]


def test_batch_of_more_events_than_allowed_is_refused() -> None:
    """As it is when they come whole."""
    with pytest.raises(DecodeError):
        unpack_events(pack_events([CLICK] * 3), 2)


def _varint(number: int) -> bytes:
    written = b""
    while number > 0x7F:
        written += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return written + bytes((number,))


def test_few_bytes_do_not_unfold_to_many() -> None:
    """Shared bytes cost nothing to write, and count whenever they are used."""
    first = b"\x00\x00\x00\x00\x00\x00" + _varint(65_536) + bytes(65_536)
    again = b"\x00\x00\x00\x00" + _varint(65_536) + b"\x00\x00"
    bomb = b"\x01" + first + again * 1_000
    assert len(bomb) < 80_000
    with pytest.raises(DecodeError, match="1048576"):
        unpack_events(bomb, 2_000)
    assert len(unpack_events(b"\x01" + first + again * 15, 2_000)) == 16
    with pytest.raises(LocalProtocolError):
        pack_events([UserEvent(timestamp=1, user_id=1, action="a", payload=bytes(65_536))] * 17)


def _frame(content: bytes, **options: object) -> bytes:
    return b"\x02" + zstandard.ZstdCompressor(**options).compress(content)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x00",
        b"\x03",
        b"\x02",
        b"\x02zstd",
        _frame(bytes(MAX_UNPACKED_BYTES + 6)),
        _frame(bytes(64_000_000)),
        _frame(bytes(60), write_content_size=False),
        _frame(bytes(60)) + b"\x00",
        _frame(bytes(60)) + _frame(bytes(60))[1:],
        _frame(b""),
        b"\x01\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x01" + b"\xff" * 11,
        b"\x01\x00\x00\x01\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x00\x01\x00\x00",
        b"\x01\x00\x00\x00\x00\x00\x01\x00",
        b"\x01\x00\x00\x00\x05abc",
        b"\x01\x00\x00\x00\x01\xff\x00\x00\x00",
    ],
    ids=lambda packed: packed[:8].hex(),
)
def test_what_is_no_packed_events_is_an_error(packed: bytes) -> None:
    """A bomb, a frame without its size, two frames, a cut, bytes shared with nothing, numbers too long."""
    with pytest.raises(DecodeError):
        unpack_events(packed, 100)

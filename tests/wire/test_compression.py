"""zstd over whole messages: what comes back, what is decided, what is refused."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.compression import (
    MAX_WINDOW_BYTES,
    TRIAL_MESSAGES,
    Compressor,
    Decompressor,
    longest_packed,
)
from seedance_wire.errors import CloseCode, DecodeError, RemoteProtocolError
from tests.strategies import compressible

LIMIT = 262_144
BOMB_BYTES = 64 << 20
HEAD = b"\x28\xb5\x2f\xfd\x00"  # the magic number; no content size, no checksum, no dictionary
WINDOW = bytes([4 << 3])  # 16 KiB


def compressing() -> Compressor:
    """One that has decided to."""
    return Compressor(trial_messages=0)


def block(kind: int, size: int, content: bytes, *, last: bool = False) -> bytes:
    """A block of a zstd frame: 0 is raw, 1 one byte repeated, 2 compressed."""
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + content


@given(messages=st.lists(st.tuples(compressible, st.booleans()), max_size=12))
def test_messages_come_back_each_by_itself(messages: list[tuple[bytes, bool]]) -> None:
    """Whatever they are and wherever frames end; and none gets longer than is said."""
    compressor, decompressor = compressing(), Decompressor(LIMIT)
    for message, last in messages:
        packed = compressor.pack(message, last=last)
        assert len(packed) <= longest_packed(len(message))
        assert decompressor.unpack(packed) == message
        assert not (last and decompressor.is_inside)


def test_what_was_said_before_makes_a_message_shorter() -> None:
    """The context is the connection's, and gone once a frame has ended."""
    compressor, decompressor = compressing(), Decompressor(LIMIT)
    message = bytes(range(1, 200))
    first, second, third = (compressor.pack(message, last=last) for last in (False, True, False))
    assert len(first) > len(message) > 5 * len(second)
    assert third == first
    for packed in (first, second, third):
        assert decompressor.unpack(packed) == message


@pytest.mark.parametrize(("text", "is_on"), [(b"the same again and again ", True), (b"", False)])
def test_compressor_decides_once_by_what_it_measured(text: bytes, is_on: bool) -> None:
    """While it measures, and where nothing is gained, messages leave as they are."""
    compressor = Compressor()
    for number in range(TRIAL_MESSAGES):
        assert compressor.is_on is None
        message = text + bytes([number, 255 - number])
        assert compressor.pack(message, last=False) == message
    assert compressor.is_on is is_on
    for _ in range(100):
        message = b"x" * 1000 if not is_on else b"ab"
        assert (compressor.pack(message, last=False) != message) is is_on


def test_compressor_measures_when_its_context_has_filled() -> None:
    """What the first half of the trial loses says nothing of what follows."""
    draw = random.Random(1)
    messages = [draw.randbytes(300) for _ in range(TRIAL_MESSAGES // 2)]
    messages += [b"abcdefghijkl"] * (TRIAL_MESSAGES // 2)
    always, deciding = compressing(), Compressor()
    gained = sum(len(message) - len(always.pack(message, last=False)) for message in messages)
    for message in messages:
        deciding.pack(message, last=False)
    assert gained < 0
    assert deciding.is_on


def test_nothing_is_begun_for_the_last_message() -> None:
    """What stands alone leaves as it is: a frame for it would only make it longer."""
    assert compressing().pack(b"x" * 1000, last=True) == b"x" * 1000


@pytest.mark.parametrize(
    "bomb",
    [
        zstandard.ZstdCompressor(level=3).compress(bytes(BOMB_BYTES)),
        zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(BOMB_BYTES)),
        zstandard.ZstdCompressor(level=19).compress(bytes(BOMB_BYTES)),
    ],
)
def test_window_over_the_limit_is_refused(bomb: bytes) -> None:
    """64 MiB of zeros in under 10 kB, with and without saying so: nothing of it is unfolded."""
    assert len(bomb) < 10_000
    decompressor = Decompressor(LIMIT)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="memory"):
        decompressor.unpack(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_bomb_within_the_window_stops_at_the_limit() -> None:
    """4 bytes that unfold to 16 KiB, 10,000 times: memory stays under 2 MiB, and the close code is 1009."""
    bomb = HEAD + WINDOW + block(1, MAX_WINDOW_BYTES, b"a") * 10_000
    decompressor = Decompressor(LIMIT)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="unfolds") as caught:
        decompressor.unpack(bomb)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    assert caught.value.close_code is CloseCode.MESSAGE_TOO_BIG


def test_bomb_may_not_hide_behind_messages_that_are_short() -> None:
    """The limit is of each message, not of a frame: a connection lives long."""
    decompressor = Decompressor(LIMIT)
    assert decompressor.unpack(HEAD + WINDOW + block(1, 16_384, b"a")) == b"a" * 16_384
    for _ in range(100):
        assert len(decompressor.unpack(block(1, 16_384, b"a") * 16)) == LIMIT
    with pytest.raises(RemoteProtocolError, match="unfolds"):
        decompressor.unpack(block(1, 16_384, b"a") * 17)


def test_frame_that_lies_about_its_size_is_refused() -> None:
    """It says 100 bytes and holds 200."""
    honest = zstandard.ZstdCompressor().compress(b"ab" * 50)
    assert honest[4:6] == b"\x20\x64"
    lying = honest[:6] + block(1, 200, b"a", last=True)
    with pytest.raises(DecodeError):
        Decompressor(LIMIT).unpack(lying)


@pytest.mark.parametrize(
    "behind", [b"x", HEAD + WINDOW, zstandard.ZstdCompressor().compress(b"y"), b"x" * 200]
)
def test_bytes_behind_the_end_of_a_frame_are_refused(behind: bytes) -> None:
    """Concatenated frames as well: one message is of one frame."""
    packed = HEAD + WINDOW + block(0, 1, b"a", last=True)
    assert Decompressor(LIMIT).unpack(packed) == b"a"
    for padding in range(70):  # wherever the end falls in what is read at once
        long = HEAD + WINDOW + block(0, padding, b"a" * padding, last=True)
        with pytest.raises(DecodeError, match="behind"):
            Decompressor(LIMIT).unpack(long + behind)


def test_messages_cut_short_give_less_and_end_in_an_error() -> None:
    """A frame goes on with the next message, so what is missing shows there, as garbage or as an error."""
    whole = compressing().pack(b"some text, some text, some text", last=False)
    for cut in range(5, len(whole)):
        decompressor = Decompressor(LIMIT)
        assert decompressor.unpack(whole[:cut]) != b"some text, some text, some text"
        assert decompressor.is_inside


@given(data=st.binary(max_size=200), begun=st.booleans())
def test_decompressor_raises_nothing_else(data: bytes, begun: bool) -> None:
    """Whatever comes behind a magic number."""
    with contextlib.suppress(RemoteProtocolError):
        Decompressor(1000).unpack((HEAD + WINDOW if begun else HEAD[:4]) + data)

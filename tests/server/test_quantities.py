"""Tests of `seedance_server.quantities`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.quantities import (
    parse_bytes,
    parse_milliseconds,
    parse_seconds,
    show_bytes,
    show_milliseconds,
    show_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("1.5k", 1500), ("2g", 2 * 10**9), ("7B", 7)],
)
def test_sizes_read_as_people_write_them(text: str, size: int) -> None:
    """Powers of ten and of two, with or without B, in any case."""
    assert parse_bytes(text) == size
    assert parse_bytes(text.lower()) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 TB", "4GiBs", "0x10", "1e3", "nan"])
def test_sizes_refuse_what_is_none(text: str) -> None:
    """A size that isn't one is refused, not guessed."""
    with pytest.raises(ValueError, match="must be a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("30s", 30),
        ("0.25", 0.25),
        ("500ms", 0.5),
        ("1h30m", 5400),
        ("2 d", 172_800),
        (" 1m 5s ", 65),
        ("0", 0),
    ],
)
def test_times_read_as_people_write_them(text: str, seconds: float) -> None:
    """A bare number is in the setting's own unit; units may be put together."""
    assert parse_seconds(text) == seconds
    if not text.strip(" .0123456789"):
        assert parse_milliseconds(text) == int(float(text))
    else:
        assert parse_milliseconds(text) == seconds * 1000


@pytest.mark.parametrize("text", ["", "s", "-1", "-1s", "1w", "1 h of it", "1h30", "nan", "inf", "1e3", "1S"])
def test_times_refuse_what_is_none(text: str) -> None:
    """A time that isn't one is refused, not guessed."""
    for parse in (parse_seconds, parse_milliseconds):
        with pytest.raises(ValueError, match="must be a time"):
            parse(text)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_bytes(1 << 30), "1GiB"),
        (show_bytes(1536), "1536"),
        (show_bytes(0), "0"),
        (show_seconds(86_400.0), "1d"),
        (show_seconds(90.0), "90s"),
        (show_seconds(0.1), "100ms"),
        (show_seconds(0.0), "0ms"),
        (show_milliseconds(250), "250ms"),
    ],
)
def test_values_are_shown_in_the_largest_unit_that_divides_them(shown: str, text: str) -> None:
    """What is printed is what one would have typed."""
    assert shown == text


@given(st.integers(0, 1 << 50), st.floats(0, 1e7, allow_nan=False).map(lambda s: round(s, 6)))
def test_what_is_shown_reads_back_as_the_same(number: int, seconds: float) -> None:
    """Printed settings can be pasted into a file."""
    assert parse_bytes(show_bytes(number)) == number
    assert parse_milliseconds(show_milliseconds(number)) == number
    assert parse_seconds(show_seconds(seconds)) == pytest.approx(seconds, rel=1e-12)

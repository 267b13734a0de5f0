"""Tests of `seedance_server.setting`."""

import pytest

from seedance_server.setting import is_loopback, parse_bytes


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
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, answer: bool) -> None:
    """Names but localhost may resolve to anything, so they don't count."""
    assert is_loopback(host) is answer

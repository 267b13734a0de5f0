"""Tests of `seedance_server.setting`."""

import pytest

from seedance_server.setting import is_loopback


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

"""Tests of `seedance_server.http.cursor`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.http.cursor import format_cursor, parse_cursor
from seedance_server.http.refusal import Refusal


@given(st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=5))
def test_cursor_is_read_back(positions: list[int]) -> None:
    """Whatever was said is understood."""
    assert parse_cursor(format_cursor(positions), len(positions)) == positions


@pytest.mark.parametrize("text", [None, "", " ", "0"])
def test_cursor_of_nothing_is_the_beginning(text: str | None) -> None:
    """However many choices there are."""
    assert parse_cursor(text, 3) == [0, 0, 0]


@pytest.mark.parametrize("text", ["1", "1-2-3", "-1", "1-", "1--2", "a-b", "1.5-2", "٣-٤", "9" * 19 + "-1"])
def test_cursor_of_something_else_is_refused(text: str) -> None:
    """Not guessed at: the client would get pieces twice, or never."""
    with pytest.raises(Refusal):
        parse_cursor(text, 2)

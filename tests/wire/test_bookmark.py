"""Places in streams, as text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.bookmark import Bookmark
from seedance_wire.errors import InvalidBookmarkError
from tests.strategies import bookmarks

GOOD = Bookmark(
    session_id="s-1", resume_token=b"t" * 32, stream_id=1, last_processed_id=3, offset=9, digest16=b"d" * 16
)


@given(bookmark=bookmarks())
def test_bookmark_comes_back_from_its_text(bookmark: Bookmark) -> None:
    """One line, from which the same place is read."""
    text = bookmark.to_str()
    assert "\n" not in text
    assert Bookmark.from_str(text) == bookmark


@given(text=st.text(max_size=60) | st.text(max_size=60).map(lambda t: f"seedance-bookmark-1 {t}"))
def test_bookmark_raises_only_its_own_error_for_any_text(text: str) -> None:
    """Applications read it from wherever they put it."""
    with pytest.raises(InvalidBookmarkError):
        Bookmark.from_str(text)


@given(end=st.integers(0, len(GOOD.to_str()) - 1))
def test_bookmark_is_whole_or_none(end: int) -> None:
    """A text that was cut anywhere is no other place."""
    with pytest.raises(InvalidBookmarkError):
        Bookmark.from_str(GOOD.to_str()[:end])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_id", "a\nb"),
        ("session_id", 1),
        ("resume_token", ""),
        ("resume_token", "00" * 257),
        ("resume_token", "0"),
        ("stream_id", 0),
        ("stream_id", 2**64),
        ("stream_id", 1.5),
        ("last_processed_id", -1),
        ("last_processed_id", 0),
        ("offset", -1),
        ("digest", "00" * 15),
        ("more", 1),
        ("stream_id", None),
    ],
)
def test_bookmark_refuses_values_that_no_place_has(name: str, value: object) -> None:
    """Out of range, of another type, unknown or missing."""
    version, _, members = GOOD.to_str().partition(" ")
    with pytest.raises(InvalidBookmarkError):
        Bookmark.from_str(f"{version} {json.dumps(json.loads(members) | {name: value})}")


def test_bookmark_of_another_version_is_told_apart() -> None:
    """A newer library may write what this one must not guess at."""
    with pytest.raises(InvalidBookmarkError, match="another version"):
        Bookmark.from_str(GOOD.to_str().replace("bookmark-1", "bookmark-2"))
    with pytest.raises(InvalidBookmarkError, match="another version"):
        Bookmark.from_str(GOOD.to_str() + " " * 5000)


def test_bookmark_keeps_its_token_out_of_logs() -> None:
    """Whoever knows the token can take the session over."""
    assert "74" * 32 not in repr(GOOD)
    assert "tttt" not in repr(GOOD)

"""Digests of texts that grow."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.running_digest import PREFIX_BYTES, RunningDigest


@given(pieces=st.lists(st.binary(max_size=10)))
def test_digest_is_that_of_all_pieces(pieces: list[bytes]) -> None:
    """However the text came, and wherever a copy was taken."""
    digest = RunningDigest()
    for piece in pieces:
        twin = digest.copy()
        before = digest.whole
        digest.update(piece)
        assert twin.whole == before
    expected = hashlib.sha256(b"".join(pieces)).digest()
    assert (digest.whole, digest.prefix) == (expected, expected[:PREFIX_BYTES])


def test_digest_of_an_unseen_text_stands_until_the_text_grows() -> None:
    """What others vouched for is of one moment, and a digest is never a guess."""
    digest = RunningDigest.of_unseen(b"p" * PREFIX_BYTES)
    digest.update(b"")
    assert (digest.whole, digest.prefix, digest.copy().prefix) == (None, b"p" * 16, b"p" * 16)
    digest.update(b"x")
    assert (digest.whole, digest.prefix, digest.copy().prefix) == (None, None, None)
    assert RunningDigest.of_unseen(None).prefix is None

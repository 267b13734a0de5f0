"""Token ids survive as bytes, the same bytes on every machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.journal.token_ids import pack_token_ids, unpack_token_ids


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_come_back(token_ids: list[int]):
    """A takeover continues from exactly the ids that were generated."""
    assert unpack_token_ids(pack_token_ids(token_ids)) == tuple(token_ids)


def test_token_ids_are_little_endian():
    """A journal moved to another machine is the same journal."""
    assert pack_token_ids([1, 0x01020304]) == b"\1\0\0\0\4\3\2\1"


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_token_id_out_of_range_is_refused(token_id: int):
    """No id is cut to fit."""
    with pytest.raises(ValueError, match="token id"):
        pack_token_ids([token_id])


def test_torn_bytes_are_refused():
    """Half an id is no id."""
    with pytest.raises(ValueError, match="multiple"):
        unpack_token_ids(b"\1\0\0\0\2")

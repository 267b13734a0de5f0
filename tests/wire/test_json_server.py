"""A server's messages as JSON objects."""

import pytest

from seedance_wire.errors import DecodeError
from seedance_wire.json_fields import Json
from seedance_wire.json_server import server_message_from_json, server_message_to_json
from seedance_wire.messages import Delta, Flush

DELTA: dict[str, Json] = {"s": 1, "e": 1, "id": 2, "t": 1, "o": 3, "d": "x"}


def test_frame_has_the_names_of_s8() -> None:
    """`id`, `t`, `o`, `d` from the specification; `s` and `e` beside them, and nothing that goes without
    saying."""
    assert server_message_to_json(Delta(stream_id=1, id=2, epoch=1, offset=3, text="x")) == DELTA
    assert server_message_from_json(DELTA) == Delta(stream_id=1, id=2, epoch=1, offset=3, text="x")
    flush = {"s": 1, "e": 1, "id": 2, "t": 2, "o": 3, "d": ""}
    assert server_message_to_json(Flush(stream_id=1, id=2, epoch=1, offset=3)) == flush


def test_frame_skips_what_it_does_not_know() -> None:
    """A newer server may say more."""
    assert server_message_from_json(DELTA | {"new": {}}) == server_message_from_json(DELTA)


@pytest.mark.parametrize(
    "change",
    [
        {"t": 0},
        {"t": 4},
        {"t": "1.0"},
        {"t": None},
        {"s": 0},
        {"id": "x"},
        {"o": 2**32},
        {"o": -1},
        {"e": None},
        {"d": None},
        {"d": 1},
        {"d": "\ud800"},
        {"n": -1},
        {"logprobs": 1},
        {"logprobs": [{"token_id": 1, "text": "a", "logprob": "x"}]},
        {"logprobs": [{"token_id": 1, "text": "a", "logprob": 0, "top": [[1, "a"]]}]},
        {"logprobs": [{"token_id": 1, "text": "a", "logprob": 0, "top": [["x", "a", 0]]}]},
        {"t": 2, "final": {}},
        {"t": 2, "final": 1},
        {"t": 3},
        {"t": 3, "code": "unheard_of"},
        {"type": "delta"},
        {"type": "frames", "frames": []},
    ],
    ids=str,
)
def test_server_message_refuses_a_frame_that_no_server_sends(change: dict[str, Json]) -> None:
    """Missing, mistyped and out of range are all the same error."""
    with pytest.raises(DecodeError):
        server_message_from_json(DELTA | change)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        {},
        {"type": "hello"},
        {"type": "accepted", "sequence_id": 1, "stream_id": 1, "durability": "some"},
        {"type": "refused", "sequence_id": 1, "code": "internal"},
        {"type": "welcome", "session_id": "s", "epoch": 1, "last_sequence_id": 0, "model": "m"},
        {"type": "goaway"},
    ],
    ids=str,
)
def test_server_message_refuses_what_is_incomplete(value: Json) -> None:
    """What a message needs is there, or it is none."""
    with pytest.raises(DecodeError):
        server_message_from_json(value)

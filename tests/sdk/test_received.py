"""What was received of a stream, and what was not after all."""

from __future__ import annotations

from seedance_sdk.completion import Chunk, TokenLogprob
from seedance_sdk.received import Received


def chunk(number: int, text: str, offset: int, *, last: bool = False) -> Chunk:
    return Chunk(
        delta=text,
        id=number,
        offset=offset,
        token_count=1,
        received_at=0.0,
        logprobs=(TokenLogprob(token_id=number, text=text, logprob=-1.0),),
        finish_reason="stop" if last else None,
    )


def test_received_grows_piece_by_piece() -> None:
    """Text, ids, bytes and the end are those of the pieces."""
    received = Received(4, 10)
    assert (received.text, received.last_id, received.bytes, received.whole) == ("", 4, 10, False)
    received.add(chunk(5, "é", 10))
    assert (received.text, received.last_id, received.bytes, received.whole) == ("é", 5, 12, False)
    received.add(chunk(6, "", 12, last=True))
    assert (received.text, received.last_id, received.whole) == ("é", 6, True)
    assert [entry.token_id for entry in received.logprobs] == [5, 6]


def test_received_takes_back_what_nobody_got() -> None:
    """As if it had not come, and it may come again."""
    received = Received(0, 0)
    first, second = chunk(1, "a", 0), chunk(2, "b", 1)
    received.add(first)
    received.add(second)
    received.take_back(second)
    assert (received.text, received.last, received.bytes) == ("a", first, 1)
    received.add(second)
    assert (received.text, received.last_id) == ("ab", 2)

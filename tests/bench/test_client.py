"""What a token costs a client: the table, and the stream of the other client's server."""

from __future__ import annotations

import trio

from client import table
from engine.sse_client import stream_completion
from engine.workload import Request
from sse_source import serve


def test_table_compares_within_rounds() -> None:
    """A round that was slow for both says nothing of either."""
    spent = {"sdk": [50.0, 500.0, 60.0], "sse": [100.0, 1000.0, 40.0]}
    record = {"streams": 32, "tokens": 150, "step_ms": 25.0, "microseconds_a_token": spent}
    lines = table(record).splitlines()
    assert lines[2].split()[-3:] == ["50.0", "60.0", "500.0"]
    assert lines[-1].split()[-1] == "0.50"
    one = table({**record, "microseconds_a_token": {"sdk": [1.0]}})
    assert "over" not in one


async def test_source_streams_a_token_an_event_to_the_end() -> None:
    """The client of the comparison finds in it what it finds in a peer's answer."""
    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve, 0.001)
        answer = await stream_completion(port, {}, Request("Count.", 3))
        nursery.cancel_scope.cancel()
    assert (answer.text, answer.tokens, answer.error) == ("0 1 2 ", 3, None)
    assert len(answer.arrivals_s) == 3

"""A conversation of two turns, as the benchmark holds it."""

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.testing import Answer, ScriptedServer
from turns import converse


async def test_the_second_turn_goes_on_from_the_first(autojump_clock) -> None:
    """Else its prompt would be another one, and what it shows no reuse."""
    server = ScriptedServer(Answer("Once", " upon"), Answer(" a", " time"))
    async with AsyncSeedanceClient(connector=server) as client:
        first, second = await converse(client, words=20, seed=1)
    assert [request.continues for request in server.requests] == [None, 1]
    assert min(first.first_token_s, second.first_token_s) >= 0

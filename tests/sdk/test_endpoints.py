"""All endpoints of a client: whom to choose, and which other addresses are trusted."""

from __future__ import annotations

import logging

import pytest
import trio.testing

from seedance_sdk.circuit_breaker import CircuitState
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.edges import Affinity, Edge, Edges
from seedance_sdk.endpoints import MAX_NAMED
from seedance_sdk.errors import ConnectFailed
from seedance_sdk.testing import Answer, ScriptedServer
from tests.sdk.fleet import A, B, C, Fleet, edges_with, endpoints_of


async def test_endpoint_whose_circuit_is_open_is_none_to_choose(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until a probe may be made there; the affinity stays with the other one for its time."""
    endpoints = endpoints_of(Fleet({}), edges_with(A, B))
    place = endpoints.choose()
    for _ in range(3):
        place.circuit.ended(await place.circuit.attempt(), ConnectFailed("refused"))
    assert endpoints.choose().url == B
    await trio.sleep(60)
    assert endpoints.choose().url == B
    await trio.sleep(61)
    assert endpoints.choose().url == A


async def test_has_other_counts_what_may_be_tried_now() -> None:
    """Not what was just tried, nor what is left alone."""
    endpoints = endpoints_of(Fleet({}), Edges([A, B]))
    assert endpoints.has_other({A})
    assert not endpoints.has_other({A, B})


async def test_named_address_keeps_its_circuit_and_an_endpoint_of_ours_its_own() -> None:
    """What was learned of it is not forgotten between two sessions; the newest few are remembered."""
    endpoints = endpoints_of(Fleet({}), Edges([A, B]))
    named = endpoints.named("ws://other.example")
    assert named is not None
    assert named.url == "ws://other.example/v1/chat"
    assert endpoints.named("ws://other.example/v1/chat") is named
    ours = endpoints.named(B)
    assert ours is endpoints.choose({A})
    for number in range(MAX_NAMED):
        endpoints.named(f"ws://{number}.example")
    assert endpoints.named("ws://other.example") is not named


async def test_named_address_is_trusted_with_the_key_over_tls_only_where_ours_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And one that can't be used is passed over and logged."""
    endpoints = endpoints_of(Fleet({}), Edges(["wss://a.example"]))
    with caplog.at_level(logging.WARNING, "seedance_sdk"):
        assert endpoints.named("ws://other.example") is None
        assert endpoints.named("http://other.example") is None
    assert "not encrypted" in caplog.text
    assert "can't be used" in caplog.text
    assert endpoints.named("wss://other.example") is not None


async def test_clients_spread_over_endpoints_and_those_of_one_affinity_stay_together() -> None:
    """By default each client goes its own way; a key of the caller's own decides for all who have it."""
    server = ScriptedServer(respond=lambda _: Answer("hi"))
    fleet = Fleet({A: server, B: server, C: server})
    dice = iter(number / 97 for number in range(97))
    for _ in range(12):
        async with AsyncSeedanceClient(Edges([A, B, C]), connector=fleet, dice=dice.__next__) as client:
            await client.complete(prompt="x")
    assert set(fleet.dials) == {A, B, C}
    fleet.dials.clear()
    for _ in range(6):
        edges = Edges([A, Edge(url=B), C], affinity=Affinity(key="user-7"))
        async with AsyncSeedanceClient(edges, connector=fleet) as client:
            await client.complete(prompt="x")
    assert len(set(fleet.dials)) == 1


async def test_client_shows_what_it_makes_of_its_endpoints(autojump_clock: trio.testing.MockClock) -> None:
    """State, weight, handshakes: in the order given."""
    server = ScriptedServer(Answer("hi"))
    fleet = Fleet({A: server, B: server})
    fleet.handshake_s[A] = 0.5
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        await client.complete(prompt="x")
        first, second = client.endpoints
        assert (first.url, second.url) == (A, B)
        assert client.circuit is first.circuit is CircuitState.CLOSED
        assert first.routing.handshake_p95_s == pytest.approx(0.5)
        assert first.routing.weight < 1 == second.routing.weight
        assert repr(client) == f"<AsyncSeedanceClient {A}, {B}>"

"""Where a session's next connection goes, after each kind of end."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from seedance_sdk.circuit_breaker import CircuitState
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.edges import Edges
from seedance_sdk.errors import (
    AuthenticationError,
    ConnectFailed,
    ConnectionLost,
    Draining,
    StreamNotFound,
    UpgradeRefused,
)
from seedance_sdk.limits import Limits
from seedance_sdk.route import Route
from seedance_sdk.testing import Answer, Cut, ScriptedServer
from tests.sdk.fleet import A, B, C, Fleet, edges_with, endpoints_of


@pytest.fixture
async def route() -> Route:
    """From A to B, C or back."""
    return Route(endpoints_of(Fleet({}), edges_with(A, B, C)))


async def test_cut_connection_is_made_again_where_it_was(route: Route) -> None:
    """What the session needs is there: its stream still runs, and nothing has to be computed again."""
    assert route.choose().url == A
    route.greeted()
    assert route.ended(ConnectionLost("cut", close_code=1006), greeted=True) is False
    assert route.choose().url == A


async def test_endpoint_that_cannot_be_reached_is_followed_by_the_next_until_all_have_failed(
    route: Route,
) -> None:
    """Each is tried once without a word about waiting; then it begins again."""
    tried = []
    for other_is_left in (True, True, False):
        tried.append(route.choose().url)
        assert route.ended(ConnectFailed("refused"), greeted=False) is other_is_left
    assert sorted(tried) == [A, B, C]
    assert route.choose().url in tried


@pytest.mark.parametrize("code", [1001, 4001, 1013])
async def test_endpoint_that_leaves_or_has_no_room_is_left(route: Route, code: int) -> None:
    """It has said so itself, and the others have not."""
    route.choose()
    route.greeted()
    assert route.ended(ConnectionLost("goodbye", close_code=code), greeted=True) is True
    assert route.choose().url != A


async def test_one_that_greets_is_trusted_again(route: Route) -> None:
    """What failed before the greeting counts no more at the next failure."""
    first = route.choose().url
    route.ended(ConnectFailed("refused"), greeted=False)
    second = route.choose().url
    route.greeted()
    route.ended(ConnectFailed("refused"), greeted=False)
    assert second != first
    assert route.choose().url != second


async def test_address_that_a_leaving_server_names_comes_first_and_once(route: Route) -> None:
    """Where it can't be reached the next attempt goes to an endpoint of the client's own."""
    route.choose()
    route.greeted()
    route.leaves("ws://d.example")
    assert route.ended(ConnectionLost("goodbye", close_code=1001), greeted=True) is True
    assert route.choose().url == "ws://d.example/v1/chat"
    assert route.ended(ConnectFailed("refused"), greeted=False) is True
    assert route.choose().url in {A, B, C}


async def test_connection_to_a_named_address_that_is_cut_is_made_there_again(route: Route) -> None:
    """By then the session lives there."""
    route.choose()
    route.leaves("ws://d.example/v1/chat")
    route.ended(ConnectionLost("goodbye", close_code=1001), greeted=True)
    route.choose()
    route.greeted()
    route.ended(ConnectionLost("cut", close_code=1006), greeted=True)
    assert route.choose().url == "ws://d.example/v1/chat"


async def test_endpoint_whose_circuit_is_open_is_not_gone_back_to(route: Route) -> None:
    """Unless there is no other: then it is where the wait is."""
    place = route.choose()
    for _ in range(3):
        place.circuit.ended(await place.circuit.attempt(), ConnectFailed("refused"))
    route.greeted()
    assert route.ended(ConnectionLost("cut", close_code=1006), greeted=True) is False
    assert route.choose().url != A
    alone = Route(endpoints_of(Fleet({}), Edges([A])))
    place = alone.choose()
    for _ in range(3):
        place.circuit.ended(await place.circuit.attempt(), ConnectFailed("refused"))
    alone.ended(ConnectionLost("cut", close_code=1006), greeted=True)
    assert alone.choose().url == A


async def test_session_that_only_one_endpoint_knows_stays_with_it() -> None:
    """Where journals are not shared, another one would answer that it never heard of it."""
    route = Route(endpoints_of(Fleet({}), edges_with(A, B, shared_sessions=False)))
    assert not route.bound
    route.choose()
    route.greeted()
    assert route.bound
    route.leaves(B)
    for error in (ConnectionLost("goodbye", close_code=1001), ConnectFailed("refused")):
        assert route.ended(error, greeted=False) is False
        assert route.choose().url == A


# ---- as a client sees it


async def test_stream_goes_on_at_another_endpoint_when_its_own_dies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each piece once: the other one has the journal, and the client has its place in the stream."""
    server = ScriptedServer(Answer("Hel", "lo", " wor", "ld", delay_s=1))
    fleet = Fleet({A: server, B: server})
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        stream = await client.complete(prompt="x", stream=True)
        text = (await anext(stream)).delta
        fleet.kill(A)
        text += "".join([chunk.delta async for chunk in stream])
        assert text == "Hello world"
        assert stream.reconnects == 1
        assert fleet.dials == [A, A, B]
        by_url = {each.url: each for each in client.latency.report().endpoints}
        assert by_url[A].answers.interrupted == 1
        assert by_url[B].answers.finished == 1


async def test_session_that_the_other_endpoint_does_not_know_is_an_explicit_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Endpoints that share nothing, and are said to: the stream is lost, and the error says so."""
    one, other = ScriptedServer(Answer("Hel", "lo", delay_s=1)), ScriptedServer(Answer("new"))
    fleet = Fleet({A: one, B: other})
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        stream = await client.complete(prompt="x", stream=True)
        await anext(stream)
        fleet.kill(A)
        with pytest.raises(StreamNotFound) as caught:
            await stream.collect()
        assert caught.value.partial == "Hel"
        assert (await client.complete(prompt="x")).text == "new"


async def test_unshared_session_waits_for_its_endpoint_and_new_requests_go_elsewhere(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its stream goes on once that is back; meanwhile nobody else has to wait."""
    one, other = ScriptedServer(Answer("Hel", "lo", delay_s=1)), ScriptedServer(Answer("new"))
    fleet = Fleet({A: one, B: other})
    edges = edges_with(A, B, shared_sessions=False)
    async with AsyncSeedanceClient(edges, connector=fleet) as client:
        stream = await client.complete(prompt="x", stream=True)
        text = (await anext(stream)).delta
        fleet.kill(A)
        await trio.sleep(5)
        assert client.endpoints[0].circuit is CircuitState.OPEN
        assert (await client.complete(prompt="y")).text == "new"
        fleet.down.clear()
        text += "".join([chunk.delta async for chunk in stream])
        assert text == "Hello"


async def test_first_connection_tries_each_endpoint_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A dead one among several is no reason to fail; all of them dead is, and at once."""
    server = ScriptedServer(Answer("hi"))
    fleet = Fleet({A: server, B: server, C: server})
    fleet.down = {A, B}
    async with AsyncSeedanceClient(edges_with(A, B, C), connector=fleet) as client:
        assert (await client.complete(prompt="x")).text == "hi"
        assert fleet.dials[-1] == C
    fleet.down = {A, B, C}
    fleet.dials.clear()
    async with AsyncSeedanceClient(edges_with(A, B, C), connector=fleet) as client:
        with pytest.raises(ConnectFailed):
            await client.complete(prompt="x")
        assert sorted(fleet.dials) == [A, B, C]
        assert client.latency.report().answers.failed == 1


async def test_first_connection_that_is_refused_for_good_tries_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A wrong key is as wrong elsewhere."""
    fleet = Fleet({A: ScriptedServer(), B: ScriptedServer()})
    fleet.statuses[A] = 401
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        with pytest.raises(AuthenticationError):
            await client.complete(prompt="x")
        assert fleet.dials == [A]


async def test_endpoint_without_room_does_not_make_a_stream_wait_where_another_has_some(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its minute of Retry-After is its own."""
    server = ScriptedServer(Answer("Hel", Cut(), "lo"))
    fleet = Fleet({A: server, B: server})
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        stream = await client.complete(prompt="x", stream=True)
        fleet.statuses[A] = 503
        began = trio.current_time()
        assert (await stream.collect()).text == "Hello"
        assert trio.current_time() - began < 2
        assert fleet.dials == [A, A, B]


async def test_server_that_leaves_is_left_for_another_endpoint(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """At GOAWAY a new request goes elsewhere at once, and so does what is resumed after the close."""
    server, other = ScriptedServer(Answer("one")), ScriptedServer(Answer("two"))
    fleet = Fleet({A: server, B: other})
    async with AsyncSeedanceClient(edges_with(A, B), connector=fleet) as client:
        assert (await client.complete(prompt="x")).text == "one"
        await server.go_away()
        assert (await client.complete(prompt="x")).text == "two"
        assert fleet.dials[-1] == B


async def test_endpoint_that_leaves_is_chosen_last_for_half_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """By then it has restarted, or its circuit knows."""
    endpoints = endpoints_of(Fleet({}), edges_with(A, B))
    endpoints.leaves(A)
    assert endpoints.choose().url == B
    assert not endpoints.has_other({B})
    alone = endpoints_of(Fleet({}), Edges([A]))
    alone.leaves(A)
    assert alone.choose().url == A
    await trio.sleep(300)
    assert endpoints.choose().url == A


async def test_errors_of_an_outage_of_all_endpoints_end_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However many there are, ``reconnect_timeout_s`` bounds them together."""
    server = ScriptedServer(Answer("Hel", Cut(), "lo"))
    fleet = Fleet({A: server, B: server})
    limits = Limits(reconnect_timeout_s=20)
    async with AsyncSeedanceClient(edges_with(A, B), limits=limits, connector=fleet) as client:
        stream = await client.complete(prompt="x", stream=True)
        fleet.down = {A, B}
        began = trio.current_time()
        with pytest.raises((ConnectionLost, Draining, UpgradeRefused)):
            await stream.collect()
        assert trio.current_time() - began <= 20
        assert {A, B} <= set(fleet.dials[1:])

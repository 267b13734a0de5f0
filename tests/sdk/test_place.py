"""What is noted of a connection while it is opened."""

from __future__ import annotations

import pytest
import trio.testing

from seedance_sdk.circuit import Circuit
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import ConnectFailed
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.limits import Limits
from seedance_sdk.place import Place
from seedance_sdk.testing import ScriptedServer
from tests.sdk.fleet import A, Fleet

TEMPLATE = Endpoint.of(A, subprotocol="seedance.v1", api_key=None, user_agent="test")


async def test_place_tells_how_long_a_connection_took_to_open(autojump_clock: trio.testing.MockClock) -> None:
    """Until it is open, and not until it is closed; one that fails is no handshake."""
    fleet = Fleet({A: ScriptedServer()})
    fleet.handshake_s[A] = 0.25
    told: list[tuple[float, bool | None]] = []
    observatory = LatencyObservatory()
    latency = observatory.endpoint(A)
    place = Place(
        TEMPLATE,
        fleet,
        Limits(),
        Circuit(A),
        latency,
        latency.series(canary=False),
        lambda seconds, matched: told.append((seconds, matched)),
    )
    async with place.connect() as transport:
        assert told == [(0.25, None)]
        await transport.aclose()
    fleet.down.add(A)
    with pytest.raises(ConnectFailed):
        async with place.connect():
            pass
    assert len(told) == 1
    assert observatory.report().endpoints[0].handshake.count == 1
    assert repr(place) == f"<Place {A}>"

"""Tests of `seedance_server.house`."""

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.readiness import Cause, Readiness, Reason
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import ErrorCode
from tests.server.wire_client import wire_client


async def test_house_says_why_it_takes_nothing() -> None:
    """Draining goes before all: it won't pass."""
    house = FrontDoor(Config(model_path="m"), Gate()).house
    loading = Reason(Cause.LOADING, "loading the model")
    assert house.readiness() == Readiness((loading,))
    house.start_up.report("packing", 0.4)
    loading = Reason(Cause.LOADING, "loading the model: packing: 40%")
    assert house.readiness() == Readiness((loading,))
    house.is_draining = True
    assert house.readiness() == Readiness((Reason(Cause.DRAINING, "the server is shutting down"), loading))


async def test_house_has_one_word_for_why_nothing_is_taken(autojump_clock) -> None:
    """The same at the door as in REFUSED; who is asked to shut down says that first."""
    async with serve_in_memory(ScriptedEngine(fail_at_step=1)) as server:
        house = server.door.house
        assert (house.has_failed, house.refusal_code) == (False, ErrorCode.OVERLOADED)
        async with wire_client(server.connect()) as client:
            await client.submit()
            assert await client.close_code() == 1011
        assert (house.has_failed, house.refusal_code) == (True, ErrorCode.ENGINE_FAILED)
        house.is_draining = True
        assert house.refusal_code is ErrorCode.DRAINING

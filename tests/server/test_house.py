"""Tests of `seedance_server.house`."""

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.readiness import Cause, Readiness, Reason


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

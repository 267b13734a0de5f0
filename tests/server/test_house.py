"""Tests of `seedance_server.house`."""

from seedance_server.config import Config
from seedance_server.gate import Gate
from seedance_server.house import House


async def test_house_says_why_it_takes_nothing() -> None:
    """Draining goes before all: it won't pass."""
    house = House(Config(model_path="m"), Gate())
    assert house.trouble() == "loading the model"
    house.is_draining = True
    assert house.trouble() == "draining"

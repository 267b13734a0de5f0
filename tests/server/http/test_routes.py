"""Tests of `seedance_server.http.routes`."""

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.house import House
from seedance_server.http.routes import all_routes


def house(**settings: str) -> House:
    return FrontDoor(Config(model_path="m", **settings), Gate()).house


async def test_routes_have_one_answer_each() -> None:
    """No path is listed twice for one method."""
    seen = [(route.path, method) for route in all_routes(house()) for method in route.methods]
    assert len(seen) == len(set(seen))
    assert {"/healthz", "/readyz"} <= {path for path, _ in seen}


async def test_routes_leave_the_page_out_when_it_is_off() -> None:
    """An operator may not want one; the API is as it was."""
    on = {route.path for route in all_routes(house())}
    off = {route.path for route in all_routes(house(playground="off"))}
    assert on - off == {"/", "/playground/{name}"}

"""Tests of `seedance_server.http.routes`."""

from seedance_server.config import Config
from seedance_server.gate import Gate
from seedance_server.house import House
from seedance_server.http.routes import all_routes


async def test_routes_have_one_answer_each() -> None:
    """No path is listed twice for one method."""
    config = Config(model_path="m")
    seen = [(route.path, method) for route in all_routes(House(config, Gate())) for method in route.methods]
    assert len(seen) == len(set(seen))
    assert {"/healthz", "/readyz"} <= {path for path, _ in seen}


async def test_routes_leave_the_page_out_when_it_is_off() -> None:
    """An operator may not want one; the API is as it was."""
    on = {route.path for route in all_routes(House(Config(model_path="m"), Gate()))}
    off = {route.path for route in all_routes(House(Config(model_path="m", playground="off"), Gate()))}
    assert on - off == {"/", "/playground/{name}"}

"""Tests of `seedance_server.metrics.exposition`."""

import trio
from prometheus_client import CollectorRegistry

from seedance_server.config import Config
from seedance_server.front_door import FrontDoor
from seedance_server.gate import Gate
from seedance_server.testing import serve_in_memory
from tests.server.metrics.scraping import samples


async def test_exposition_is_what_the_parser_reads() -> None:
    """Names keep their colon; nothing says when a counter was made; the process has its figures too."""
    async with serve_in_memory() as server:
        text = (await server.door.house.metrics.expose()).decode()
    names = {name for name, *_ in samples(text)}
    assert "seedance:ready" in names
    assert "process_resident_memory_bytes" in names
    assert "_created" not in text


async def test_two_servers_in_a_process_share_no_figure() -> None:
    """Each has its registry, and none is the library's own."""
    first, second = CollectorRegistry(), CollectorRegistry()
    doors = [FrontDoor(Config(model_path="m"), Gate(), registry) for registry in (first, second)]
    doors[0].house.refusals["overloaded"] += 1
    labels = {"reason": "overloaded"}
    assert first.get_sample_value("seedance:connections_refused_total", labels) == 1
    assert second.get_sample_value("seedance:connections_refused_total", labels) is None


async def test_scrapes_take_turns() -> None:
    """Whoever asks a hundred times at once has one text written at a time."""
    async with serve_in_memory() as server:
        metrics, done = server.door.house.metrics, []

        async def ask() -> None:
            done.append(await metrics.expose())
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens <= 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert len(done) == 20

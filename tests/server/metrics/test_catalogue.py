"""Tests of `seedance_server.metrics.catalogue`."""

import re

import trio

from seedance_server.metrics.catalogue import CATALOGUE
from seedance_server.testing import serve_in_memory
from seedance_server.tls import TlsStatistics
from tests.server.metrics.page import PAGE, rewritten
from tests.server.metrics.scraping import scrape
from tests.server.wire_client import wire_client


def test_catalogue_names_and_explains_each_metric_as_prometheus_would_have_it() -> None:
    """Base units, no suffix that a library adds, a sentence each, and few labels."""
    for name, metric in CATALOGUE.items():
        assert metric.name == name
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z]", name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_ms"))
        assert metric.kind in {"counter", "gauge", "histogram"}
        assert metric.help.endswith(".") or name == "server"
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.full_name == f"seedance:{name}" + "_total" * (metric.kind == "counter")


async def test_catalogue_and_a_scrape_hold_the_same_metrics(autojump_clock) -> None:
    """Nothing is promised that isn't there, nothing is there that isn't explained."""
    tls = TlsStatistics()
    async with serve_in_memory() as server:
        server.door._state._tls = lambda: tls
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.until_end()
        await trio.sleep(1)
        server.door.house.refusals["overloaded"] += 1
        tls.refused["no TLS 1.3"] += 1
        seen = {}
        for name, *labels in scrape(server):
            if name.startswith("seedance:"):
                seen.setdefault(re.sub("_(bucket|sum|count)$", "", name), set()).update(
                    label for label, _ in labels if label != "le"
                )
    assert seen == {metric.full_name: set(metric.labels) for metric in CATALOGUE.values()}


def test_page_has_the_catalogue_as_its_table() -> None:
    """Whoever adds a metric explains it: `python -m tests.server.metrics.page`."""
    text = PAGE.read_text()
    assert rewritten(text) == text
    assert text.count("| `seedance:") == len(CATALOGUE)

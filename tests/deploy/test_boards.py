"""The Grafana board and the alert rules against a scrape: what they ask for is there."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import trio
import yaml

from seedance_server.config import Config
from seedance_server.metrics.catalogue import CATALOGUE
from seedance_server.testing import serve_in_memory
from seedance_server.tls import TlsStatistics
from tests.server.metrics.scraping import scrape
from tests.server.wire_client import wire_client

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "seedance.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    },
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
}
ALWAYS = {"job", "instance", "le"}
"""Labels that Prometheus adds, or a histogram has."""


def names_in(query: str) -> set[str]:
    """Metrics that a query reads."""
    return set(re.findall(r"\b(?:seedance:|process_)[a-z0-9_]+", query))


def labels_in(query: str) -> set[str]:
    """Labels that it selects or groups by."""
    matched = re.findall(r"([a-z_]+)(?:=~|!~|!=|=)\"", query)
    grouped = re.findall(r"(?:by|ignoring) \(([^)]*)\)", query)
    return {*matched, *(name.strip() for names in grouped for name in names.split(",") if name.strip())}


@pytest.fixture
async def samples(autojump_clock):
    """A scrape of a server that has had something to do."""
    async with serve_in_memory(config=Config(model_path="m")) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.until_end()
        await trio.sleep(1)
        server.door.house.refusals["overloaded"] += 1
        server.door._state._tls = lambda: TlsStatistics(refused=Counter({"no TLS 1.3": 1}))
        return scrape(server)


async def test_board_and_alerts_ask_for_what_a_scrape_has(samples) -> None:
    """A metric that was renamed leaves no empty panel and no alert that never comes."""
    labels: dict[str, set[str]] = {}
    for name, *pairs in samples:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    for what, query in QUERIES.items():
        names = names_in(query)
        assert names, what
        assert names <= labels.keys(), what
        known = set.union(*(labels[name] for name in names)) | ALWAYS
        assert labels_in(query) <= known, what


def test_board_shows_every_metric() -> None:
    """What is worth counting is worth seeing."""
    shown = set().union(*(names_in(query) for query in QUERIES.values()))
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert {metric.full_name for metric in CATALOGUE.values()} <= shown


def test_board_lays_its_panels_out_without_overlap() -> None:
    """Each has an id, a title, words for it, and a place of its own."""
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["description"].endswith(".") for panel in PANELS)


def test_alerts_say_what_happened_and_what_to_do() -> None:
    """Who is woken by one reads a sentence, and where to look."""
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["action"].endswith(".")


def test_queries_are_what_prometheus_understands(tmp_path: Path) -> None:
    """Its own checker reads each query of board and alerts."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool isn't here: apt-get install prometheus")
    intervals = [re.sub(r"\$__rate_interval", "5m", query) for query in QUERIES.values()]
    rules = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(intervals)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    for checked in (path, ALERTS):
        command = [promtool, "check", "rules", checked]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

"""The scripts under `bench/` against a real server with a tiny model: what a stranger runs first works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("llama", tmp_path_factory.mktemp("tiny"))


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "bench" / script, *map(str, arguments)],
        env={**os.environ, "SEEDANCE_THREADS": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("mode", ["--chat", "--complete"])
def test_demo_answers_and_shows_numbers_when_given_another_model(tiny_model: Path, mode: str):
    """`nox -s demo -- --model-path X` asks six things, prints the figures and stops its server."""
    done = _run("demo.py", "--plain", "--model-path", tiny_model, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "three in turn",
        "three at once",
        "first token",
        "tokens/s in all",
        "The server has stopped.",
    ):
        assert part in done.stdout
    assert "\x1b" not in done.stdout  # neither ours nor the model's, whose random tokens include it


def test_demo_says_why_in_words_when_the_server_does_not_start(tmp_path: Path):
    """A model that cannot be loaded ends the demo with the server's own line, not with a traceback."""
    done = _run("demo.py", "--plain", "--model-path", tmp_path / "missing")
    assert done.returncode == 1
    assert "seedance-server: error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_runs_what_is_named_and_lists_what_there_is():
    """Options follow the names and reach what is named; a name that isn't there costs nothing."""
    named = _run("__main__.py", "load", "--help")
    assert (named.returncode, "--streams" in named.stdout) == (0, True), named.stdout + named.stderr
    unknown = _run("__main__.py", "load", "speed")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.splitlines()[0] == "bench: there is no speed; there are:"


def test_flow_loses_nothing_and_draws_what_it_measured(tmp_path: Path):
    """Readers that stand still, and a burst read too slowly: figures, a picture, no frame missing."""
    done = _run(
        "flow.py", "--step-ms", 5, "--good", 2, "--stalled", 3, "--pieces", 50, "--rounds", 1, "--burst", 2,
        "--burst-pieces", 50, "--slower", 2, "--results", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [written] = tmp_path.glob("*.json")
    record = json.loads(written.read_text())
    assert (record["stalled"]["frames_missing"], record["burst"]["coordinated"]["lost"]) == (0, 0)
    assert record["stalled"]["itl_ms"]["beside"]["count"] == 2 * 49
    assert record["server"]["decisions"] >= 3
    assert all(record["stalled"]["memory_bytes"][0].values())
    assert written.with_suffix(".svg").read_text().count("<g ") == 4


def test_load_writes_what_it_measured_when_it_ends(tiny_model: Path, tmp_path: Path):
    """The load generator counts every request of every level, on the machine that it names."""
    done = _run(
        "load.py", "--model-path", tiny_model, "--streams", "1,3", "--requests", 2, "--max-tokens", 5,
        "--results", tmp_path / "results",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [written] = (tmp_path / "results").glob("*.json")
    record = json.loads(written.read_text())
    counts = [(level["streams"], level["requests"], level["failed"]) for level in record["levels"]]
    assert counts == [(1, 2, 0), (3, 6, 0)]
    assert [level["tokens"] for level in record["levels"]] == [10, 30]
    assert all(level["ttft_ms"]["count"] == level["requests"] for level in record["levels"])
    assert record["machine"]["versions"]["torch"]
    assert record["server_peak_memory_bytes"] > 0


def test_fairness_measures_tenants_by_their_keys(tiny_model: Path, tmp_path: Path):
    """Three phases against the real command; every tenant gets something, and nothing fails."""
    done = _run(
        "fairness.py", "--model-path", tiny_model, "--seconds", 6, "--results", tmp_path / "results",
    )  # fmt: skip
    [written] = (tmp_path / "results").glob("*.json")
    record = json.loads(written.read_text())
    assert record["errors"] == [], done.stdout + done.stderr
    assert [row["tenant"] for row in record["saturated"]["shares"]] == ["gold", "silver", "bronze"]
    assert all(row["tokens"] for row in record["saturated"]["shares"])
    assert record["alone"]["smallest"]["requests"] > 0
    assert written.with_suffix(".svg").read_text().startswith("<svg")
    assert "gold" in done.stdout

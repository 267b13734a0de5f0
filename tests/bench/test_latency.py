"""The cost of the latency figures: what is told, and that a cost over the goal fails."""

import json
from pathlib import Path

import pytest

from latency import main

SMALL = ["--tokens", "1024", "--runs", "1"]


def test_table_tells_time_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure has a line, and the JSON holds the same."""
    path = tmp_path / "latency.json"
    assert main([*SMALL, "--goal-us", "1e6", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert capsys.readouterr().out.count("\n") == 2 + len(figures)
    assert all(min(values) > 0 for values in figures.values())


def test_status_tells_whether_the_goal_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    """No token is free."""
    assert main([*SMALL, "--goal-us", "0"]) == 1
    assert "a token" in capsys.readouterr().out

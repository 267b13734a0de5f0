"""The table of what being watched costs."""

import json
from pathlib import Path

import pytest

from metrics import main


def test_table_holds_tokens_requests_and_scrapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure is there, in the table and in the file."""
    path = tmp_path / "metrics.json"
    assert main(["--times", "1000", "--rounds", "1", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 1 + len(figures) - 1
    assert figures["token"] > 0
    assert figures["scrape, on the loop"] > 0

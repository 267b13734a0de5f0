"""The price of determinism, measured on a tiny model."""

import json
from pathlib import Path

import pytest

from deterministic import SETTINGS, main
from seedance_server.engine.config import DETERMINISTIC
from tests.tiny_models import build_tiny_model


@pytest.mark.slow
def test_every_setting_takes_its_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was found stands beside what it costs."""
    assert set(SETTINGS) == set(DETERMINISTIC)
    path, figures = build_tiny_model("llama", tmp_path / "tiny"), tmp_path / "figures.json"
    options = ["--kernels", "torch", "--streams", "1,2", "--rounds", "1", "--threads", "1"]
    assert main([*options, "--model-path", str(path), "--json", str(figures)]) == 0
    records = json.loads(figures.read_text())
    assert [(each["streams"], each["setting"]) for each in records] == [
        (n, s) for n in (1, 2) for s in SETTINGS
    ]
    assert all(each["tokens_per_s"] > 0 for each in records)
    shown = capsys.readouterr().out
    assert "torch, on: output doesn't depend on what else runs" in shown
    assert "(1.00)" in shown

"""The script for a GPU, tried out on a CPU."""

import json

import pytest
import torch

from gpu.command import main


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # put back afterwards
    torch.set_num_threads(1)


@pytest.mark.slow
def test_bundle_holds_tests_figures_and_where_they_were_made(tmp_path, capsys):
    """What runs on a rented machine once must work the first time: here is all of it, on a tiny model."""
    assert main(["--device", "cpu", "--tiny", "--output", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tests"]["outcome"] == "passed"
    assert "skipped" in report["tests"]["last"]
    assert "needs a CUDA device" in (tmp_path / "pytest.log").read_text()
    assert json.loads((tmp_path / "environment.json").read_text()) == report["environment"]
    part = report["models"]["tiny"]
    assert part["failures"] == report["skipped"] == []
    cells = [(cell["streams"], cell["graphs"], cell["temperature"]) for cell in part["cells"]]
    assert cells == [(1, "on", 0), (1, "off", 0), (2, "on", 0), (2, "off", 0), (2, "on", 1)]
    assert all(cell["tokens_per_s"] > 0 for cell in part["cells"])
    assert [cell["replays"] > 0 for cell in part["cells"]] == [True, False, True, False, True]
    assert [len(profile["kernels"]) > 0 for profile in part["kernels"]] == [True] * 4
    assert (tmp_path / "summary.md").read_text() in capsys.readouterr().out


def test_bundle_says_what_there_was_no_time_for(tmp_path):
    """A budget that is spent ends the run, not the bundle."""
    assert main(["--device", "cpu", "--tiny", "--no-tests", "--budget", "1", "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["skipped"] == ["tiny"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_script_says_so_where_there_is_no_gpu(tmp_path, capsys):
    """One line, and what can be done instead."""
    assert main(["--output", str(tmp_path)]) == 2
    assert "--device cpu --tiny" in capsys.readouterr().err

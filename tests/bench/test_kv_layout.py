"""Layouts of keys and values: what each reserves, and that all compute the same."""

import json
from pathlib import Path

import pytest
import torch

import kv_layout
from kv_layout import BLOCK, WORKLOADS, Pool, main, reserved_rows


@pytest.mark.parametrize(
    ("length", "slots", "slabs", "paged"), [(1, 2048, 64, 16), (65, 2048, 128, 80), (2000, 2048, 2048, 2000)]
)
def test_each_layout_reserves_what_its_name_says(length: int, slots: int, slabs: int, paged: int) -> None:
    """The longest there may be, the next power of two, the next block."""
    assert [reserved_rows(layout, length) for layout in kv_layout.LAYOUTS] == [slots, slabs, paged]


def test_all_layouts_attend_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is the same work: on rows that are all the same, each gives that row back."""
    planes = [Pool(torch.ones(4 * 2048, 1, 256).bfloat16(), torch.full((4 * 2048, 1, 256), 3.0).bfloat16())]
    for name, (prepare, pools) in kv_layout._layouts(planes, planes).items():
        found = prepare([60, 100, 300, 2000], pools)(0)
        for part in found if isinstance(found, list) else [found]:
            if not name.startswith("native"):  # that stores a row first
                assert torch.equal(part, torch.full_like(part, 3.0)), name


@pytest.mark.slow
def test_table_has_every_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs through, and its records hold a time for each layout."""
    path = tmp_path / "figures.json"
    assert main(["--sequences", "1,2", "--rounds", "1", "--threads", "1", "--json", str(path)]) == 0
    steps = json.loads(path.read_text())["steps"]
    assert [(step["workload"], step["sequences"]) for step in steps] == [
        (w, n) for w in WORKLOADS for n in (1, 2)
    ]
    for step in steps:
        assert min(step["ms"].values()) > 0
        assert step["waste"]["paged"] <= step["waste"]["slots"]
        assert step["waste"]["paged"] < BLOCK / 60
    assert "A move to twice the rows" in capsys.readouterr().out

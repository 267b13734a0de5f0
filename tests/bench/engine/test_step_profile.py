"""Taking steps apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.peaks import Machine
from engine.step_profile import PARTS, profile, profile_picture, profile_table, shares
from tests.tiny_models import build_tiny_model


def test_shares_add_up_to_the_step() -> None:
    """Each millisecond belongs to one part."""
    spent_ms = {"model": 7.0, "sampler": 1.0, "scheduler": 0.5}
    parts = shares(10.0, spent_ms, products_ms=4.0, attention_ms=1.0)
    assert tuple(parts) == PARTS
    assert list(parts.values()) == [4.0, 1.0, 2.0, 1.0, 0.5, 1.5]


def test_products_and_attention_take_no_longer_than_the_model_that_contains_them() -> None:
    """Measured apart they may come out slower; a share below zero would be nonsense."""
    parts = shares(10.0, {"model": 4.0}, products_ms=5.0, attention_ms=1.0)
    assert (parts["products"], parts["attention"], parts["rest of the model"]) == (3.0, 1.0, 0.0)
    parts = shares(10.0, {"model": 4.0}, products_ms=5.0, attention_ms=6.0)
    assert (parts["products"], parts["attention"], parts["rest of the model"]) == (0.0, 4.0, 0.0)


def test_table_says_what_the_products_reach_of_the_machines_best() -> None:
    """Half the rate of reading with one row, half that of multiplying with many."""
    parts = dict.fromkeys(PARTS, 1.0)
    steps = [
        {"rows": 1, "step_ms": 12.0, "products_ms": 10.0, "floor_ms": 5.0, "parts_ms": parts},
        {"rows": 100, "step_ms": 24.0, "products_ms": 20.0, "floor_ms": 10.0, "parts_ms": parts},
    ]
    rates = {"weight_bytes": 1e6, "bytes_per_s": 2e8, "operations_per_s": 1e10, "peaks_by": "x"}
    _, table = profile_table({"backend": "b", "steps": steps, **rates}).split("The machine's best")
    assert "0.1 (50%) |" in table
    assert "5 (50%) |" in table
    assert "2.00 |         2.40 |" in table


@pytest.mark.slow
def test_profile_of_a_tiny_model_has_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs through on torch alone, at each level, and its table names them."""
    monkeypatch.setattr("engine.step_profile.measure_machine", lambda _threads: Machine(1e9, 1e9))
    monkeypatch.setattr("engine.step_profile.os.sched_setaffinity", lambda _pid, _cores: None)
    path = build_tiny_model("llama", tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path)
    record = profile(path, [1, 3], [0], lambda text: tokenizer(text)["input_ids"], lambda _line: None)
    assert [step["rows"] for step in record["steps"]] == [1, 3]
    for step in record["steps"]:
        assert sum(step["parts_ms"].values()) == pytest.approx(step["step_ms"])
        assert step["attention_ms"] > 0
    assert "| 3 " in profile_table(record)
    assert "3 sequences" in profile_picture(record)

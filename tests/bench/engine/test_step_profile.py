"""Taking steps apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.step_profile import PARTS, Stopwatch, profile, profile_table, shares
from tests.tiny_models import build_tiny_model


def test_shares_add_up_to_the_step() -> None:
    """Each millisecond belongs to one part."""
    parts = shares(10.0, {"model": 7.0, "sampler": 1.0, "scheduler": 0.5}, products_ms=5.0)
    assert tuple(parts) == PARTS
    assert list(parts.values()) == [5.0, 2.0, 1.0, 0.5, 1.5]


def test_products_take_no_longer_than_the_model_that_contains_them() -> None:
    """Measured apart they may come out slower; a share below zero would be nonsense."""
    parts = shares(10.0, {"model": 4.0}, products_ms=5.0)
    assert parts["products"] == 4.0
    assert parts["rest of the model"] == 0.0


def test_stopwatch_adds_up_calls_and_begins_anew() -> None:
    """Parts are those of one step; a call that fails is timed as well."""
    watch = Stopwatch()
    assert watch.around("a", lambda x, y: x + y)(1, y=2) == 3
    with pytest.raises(ZeroDivisionError):
        watch.around("b", lambda: 1 / 0)()
    assert set(watch.take()) == {"a", "b"}
    assert watch.take() == {}


@pytest.mark.slow
def test_profile_of_a_tiny_model_has_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs through on torch alone, at each level, and its table names them."""
    monkeypatch.setattr("engine.roofline.BUFFER_BYTES", 2**22)
    monkeypatch.setattr("engine.roofline.SIDE", 64)
    monkeypatch.setattr("engine.step_profile.os.sched_setaffinity", lambda _pid, _cores: None)
    path = build_tiny_model("llama", tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path)
    record = profile(path, [1, 3], [0], lambda text: tokenizer(text)["input_ids"], lambda _line: None)
    assert [step["rows"] for step in record["steps"]] == [1, 3]
    for step in record["steps"]:
        assert sum(step["parts_ms"].values()) == pytest.approx(step["step_ms"])
    assert "| 3 " in profile_table(record)

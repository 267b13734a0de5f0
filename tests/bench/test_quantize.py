"""Weights of 8 bits beside the model as it is, as the benchmark compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize import main, quality, texts
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.model_loader import load_model
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))
    return build_tiny_model("gemma3", tmp_path_factory.mktemp("tiny"))


def test_a_model_differs_from_itself_in_nothing(tiny: Path) -> None:
    """Else what is told of 8 bits would be the measurement's own doing."""
    model = load_model(str(tiny), dtype="bfloat16", kernels="native")
    engine = Engine(model, EngineConfig(kv_memory_bytes=2**22))
    ids = model.tokenizer(texts()["code"][:2000])["input_ids"]
    found = quality(engine, engine, ids, windows=2, window=40)
    assert (found.tokens, found.same_first, found.divergence) == (78, 1.0, 0.0)
    assert found.perplexity == found.quantized > 1
    engine.check_integrity()


@pytest.mark.slow
def test_both_are_measured_at_each_level(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the file tell quality and speed."""
    small = ["--windows", "1", "--streams", "1,3", "--rounds", "2", "--steps", "2", "--threads", "1"]
    assert main([*small, "--model-path", str(tiny), "--results", str(tmp_path)]) == 0
    [written] = tmp_path.glob("*.json")
    record = json.loads(written.read_text())
    assert record["backends"][1] == record["backends"][0] + "-int8"
    for each in record["quality"].values():
        assert each["tokens"] == 255
        assert 0 < each["divergence"] < 1
        assert each["perplexity"] != each["quantized"]
    assert [(each["streams"], len(each["plain_ms"])) for each in record["speed"]] == [(1, 2), (3, 2)]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * (2 + 2), "a table of each, with two lines"

"""The command line of the comparison and the record that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from engine.command import parser, write_record
from engine.comparison import Measured
from engine.run import Attachment

FIGURES = {"tokens_per_s": 10.0, "itl_p50_ms": 1.0, "itl_p99_ms": 2.0, "ttft_p50_ms": 3.0, "ttft_p99_ms": 4.0}


def test_options_have_the_defaults_that_the_targets_are_about() -> None:
    """Without options it is the comparison that is published."""
    options = parser().parse_args([])
    assert options.peers == ["plain", "vllm", "transformers", "llamacpp"]
    assert (options.streams, options.arrivals, options.rounds) == ([1, 8, 32, 64, 128], [32], 5)
    assert (options.prompt_tokens, options.max_tokens) == (60, 48)


def test_options_name_peers_cores_and_attachments() -> None:
    """What is printed by --hold can be pasted."""
    options = parser().parse_args(["--peers", "", "--cores", "2-4", "--attach", "vllm=8000@77"])
    assert options.peers == []
    assert options.cores == [2, 3, 4]
    assert dict(options.attach) == {"vllm": Attachment(8000, 77)}


def test_options_refuse_a_peer_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error is not measured as an absence."""
    with pytest.raises(SystemExit):
        parser().parse_args(["--peers", "vlm"])
    assert "plain, vllm, transformers, llamacpp" in capsys.readouterr().err


def test_record_is_written_with_table_and_picture(tmp_path: Path) -> None:
    """Figures, table and picture of a run lie side by side under one name."""
    measured = [Measured("ours", "burst", 1, 1, FIGURES)]
    shown: list[str] = []
    record = {"runs": [], "measured": [attrs.asdict(each) for each in measured]}
    write_record(tmp_path / "a" / "engine-x.json", record, measured, shown.append)
    written = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert written == ["engine-x.json", "engine-x.md", "engine-x.svg"]
    assert json.loads((tmp_path / "a" / "engine-x.json").read_text())["measured"][0]["peer"] == "ours"
    assert "seedance" in shown[0]
    assert "vLLM CPU" not in shown[0]

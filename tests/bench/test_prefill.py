"""Policies for prompts beside answers, measured on a tiny model."""

import json
from pathlib import Path

import pytest

from prefill import POLICIES, Times, main
from seedance_server.engine.prefill_budget import PrefillBudget
from tests.tiny_models import build_tiny_model


def test_times_tell_first_tokens_from_gaps() -> None:
    """The wait for a first token counts from the arrival, and is no gap."""
    times = Times({0: 1.0, 1: 2.0}, {0: [3.0, 4.0, 6.0], 1: [5.0, 9.0]})
    assert times.first_tokens_s == [2.0, 3.0]
    assert times.gaps_s([0, 1]) == [1.0, 2.0, 4.0]
    assert times.gaps_s([0, 1], from_s=4.0) == [2.0, 4.0]


def test_policies_are_what_their_names_say() -> None:
    """One is the engine's own, one doesn't see who waits, the others hold what they say."""
    budget = PrefillBudget(256)
    for _ in range(50):
        budget.note(8, 0, 0.020)
        budget.note(8, 64, 0.052)
    asked = {name: policy(budget)(8, 60) for name, policy in POLICIES.items()}
    assert asked["as it comes"] > asked["whoever waits"]
    assert [asked[f"{tokens} a step"] for tokens in (64, 128, 256)] == [64, 128, 256]


@pytest.mark.slow
def test_every_level_runs_under_every_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A burst and arrivals, each to the end, in turns; the table has a row for each."""
    monkeypatch.setattr("prefill.os.sched_setaffinity", lambda _pid, _cores: None)
    monkeypatch.setattr("prefill.ARRIVING_ANSWER_TOKENS", 40)
    monkeypatch.setattr("prefill.ARRIVING_SECONDS", 0.05)
    path = build_tiny_model("llama", tmp_path / "tiny")
    options = ["--streams", "3", "--arrivals", "2", "--rate", "200", "--rounds", "1", "--cores", "0"]
    figures = tmp_path / "figures.json"
    assert main([*options, "--model-path", str(path), "--json", str(figures)]) == 0
    records = json.loads(figures.read_text())
    assert [(each["level"], each["policy"]) for each in records] == [
        (level, policy) for level in ("3", "2, 200 a second arrive") for policy in list(POLICIES)[:2]
    ]
    assert all(each["tokens_per_s"] > 0 for each in records)
    assert capsys.readouterr().out.count("\n| ") >= 4

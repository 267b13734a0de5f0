"""Tables of a comparison."""

from __future__ import annotations

from attrs import evolve

from engine.comparison import Measured
from engine.measurement import STAGES
from engine.report import markdown_table, report

BURST = {
    "tokens_per_s": 100.0,
    "itl_p50_ms": 10.0,
    "itl_p99_ms": 20.0,
    "ttft_p50_ms": 5.0,
    "ttft_p99_ms": 6.0,
}
TITLES = {"ours": "seedance", "vllm": "vLLM CPU"}


def test_table_is_aligned_and_valid_markdown() -> None:
    """It reads well in a terminal and renders on a page."""
    lines = markdown_table(["engine", "tokens/s"], [["a", "1.0"], ["longer name", "200.0"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "| ----------- | -------: |"
    assert lines[2] == "| a           |      1.0 |"


def test_report_shows_medians_with_their_spread_and_the_ratio() -> None:
    """A figure without its spread means nothing on a shared machine."""
    measured = [
        Measured(peer, "burst", 32, number, {**BURST, "tokens_per_s": value})
        for number in (1, 2, 3)
        for peer, value in (("ours", 100.0 + number), ("vllm", 50.0))
    ]
    text = report(measured, TITLES)
    assert "|      3 | 102.0 (101.0..103.0) |" in text
    assert "2.04 (2.02..2.06)" in text


def test_report_says_which_targets_are_met_missed_and_open() -> None:
    """A target that was missed is said as plainly as one that was met."""
    ours = Measured("ours", "burst", 1, 1, {**BURST, "tokens_per_s": 110.0})
    theirs = Measured("vllm", "burst", 1, 1, BURST)
    lines = report([ours, theirs], TITLES).splitlines()
    (rate,) = [line for line in lines if line.startswith("| tokens/s at 1, over vLLM")]
    (gap,) = [line for line in lines if line.startswith("| median ITL at 1, over vLLM")]
    (llama,) = [line for line in lines if line.startswith("| tokens/s at 1, over llama.cpp")]
    assert "NOT MET" in rate
    assert "| met" in gap.replace("          met", "| met")
    assert "not measured" in llama
    _, of_plain = report([ours, evolve(ours, peer="plain")], {**TITLES, "plain": "P"}).split("Targets of P")
    assert "not measured" not in of_plain


def test_report_shows_where_the_time_to_the_first_token_goes() -> None:
    """Each stage with its share, of the engine that tells."""
    stages = dict.fromkeys(STAGES, 0.0) | {"queue_ms": 10.0, "prefill_ms": 30.0, "ttft_mean_ms": 40.0}
    measured = [Measured("ours", "burst", 1, 1, {**BURST, **stages}), Measured("vllm", "burst", 1, 1, BURST)]
    _, table = report(measured, TITLES).split("Where the time to the first token goes")
    (row, *_) = [line for line in table.splitlines() if line.startswith("|   1 seedance")]
    assert "10.0 (25%)" in row
    assert "30.0 (75%)" in row
    assert "Where the time" not in report(measured[1:], TITLES)


def test_report_leaves_out_levels_at_which_an_engine_was_not_measured() -> None:
    """A row of dashes is no row."""
    measured = [Measured("ours", "burst", 1, 1, BURST), Measured("vllm", "burst", 8, 1, BURST)]
    text = report(measured, TITLES)
    assert "|   1 seedance" in text
    assert "|   1 vLLM CPU" not in text

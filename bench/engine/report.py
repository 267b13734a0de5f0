"""The tables of a comparison, as Markdown that also reads well as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.comparison import ARRIVALS, BURST, OURS, Measured, Spread, Verdict, ratio, spread, verdicts
from engine.measurement import STAGES
from engine.workload import TEXTS

__all__ = ["markdown_table", "report"]

BURST_COLUMNS = (
    ("tokens/s", "tokens_per_s", 1),
    ("ms a token", "tpot_p50_ms", 1),
    ("tokens a piece", "tokens_per_piece", 1),
    ("ITL P50 ms", "itl_p50_ms", 1),
    ("ITL P99 ms", "itl_p99_ms", 1),
    ("TTFT P50 ms", "ttft_p50_ms", 0),
    ("TTFT P99 ms", "ttft_p99_ms", 0),
)
ARRIVAL_COLUMNS = (
    ("ITL P50 ms", "itl_p50_ms", 1),
    ("ITL P99 ms", "itl_p99_ms", 1),
    ("P99 / P50", "itl_p99_to_p50", 2),
    ("TTFT P50 of arrivals ms", "ttft_p50_ms", 0),
)
ABSENT = "-"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table with its columns aligned, the first to the left and the others to the right."""
    columns = zip(headings, *rows, strict=True)
    widths = [max(3, *map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width) if not index else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    return "\n".join([line(headings), line(rule), *map(line, rows)])


def _cell(value: Spread | None, digits: int) -> str:
    if value is None:
        return ABSENT
    middle = f"{value.median:.{digits}f}"
    return middle if value.count == 1 else f"{middle} ({value.low:.{digits}f}..{value.high:.{digits}f})"


def _levels(measured: Sequence[Measured], mode: str) -> list[int]:
    return sorted({each.streams for each in measured if each.mode == mode})


def _mode_table(
    measured: Sequence[Measured],
    titles: Mapping[str, str],
    mode: str,
    columns: Sequence[tuple[str, str, int]],
    compared: str,
) -> str:
    rows = []
    for streams in _levels(measured, mode):
        for peer, title in titles.items():
            cells = [
                _cell(spread(measured, peer, mode, streams, name), digits) for _, name, digits in columns
            ]
            if set(cells) == {ABSENT}:
                continue
            against = "" if peer == "ours" else _cell(ratio(measured, peer, mode, streams, compared), 2)
            rounds = sum((each.peer, each.mode, each.streams) == (peer, mode, streams) for each in measured)
            rows.append([f"{streams:>3} {title}", str(rounds), *cells, against])
    headings = (heading for heading, _, _ in columns)
    return markdown_table(["streams, engine", "rounds", *headings, "ours / it"], rows)


def _stage_table(measured: Sequence[Measured], titles: Mapping[str, str]) -> str | None:
    """Where the time to the first token goes, of the engines that tell; None if none was measured."""
    rows = []
    for streams in _levels(measured, BURST):
        for peer in OURS:
            ttft = spread(measured, peer, BURST, streams, "ttft_mean_ms")
            stages = [spread(measured, peer, BURST, streams, name) for name in STAGES]
            if ttft is None or None in stages:
                continue
            whole = sum(stage.median for stage in stages if stage)
            cells = [f"{stage.median:.1f} ({stage.median / whole:.0%})" for stage in stages if stage]
            rows.append([f"{streams:>3} {titles[peer]}", *cells, _cell(ttft, 1)])
    heads = [name.removesuffix("_ms").replace("_", " ") for name in STAGES]
    return markdown_table(["streams, engine", *heads, "TTFT mean ms"], rows) if rows else None


def _verdict_row(verdict: Verdict) -> list[str]:
    target = verdict.target
    bound = f"≥ {target.least:g}" if target.least is not None else f"≤ {target.most:g}"
    word = {True: "met", False: "NOT MET", None: "not measured"}[verdict.met]
    return [target.text, bound, _cell(verdict.value, 2), word]


def report(measured: Sequence[Measured], titles: Mapping[str, str]) -> str:
    """Return all tables: bursts, stages of the first token, arrivals, targets.

    Args:
        measured: All rounds.
        titles: The engines to show, ours among them, by name and in the order of the rows.
    """
    parts = []
    if _levels(measured, BURST):
        parts += [
            "All streams at once; medians of the rounds (least..greatest); last: our tokens/s over theirs.",
            _mode_table(measured, titles, BURST, BURST_COLUMNS, "tokens_per_s"),
        ]
    if (stages := _stage_table(measured, titles)) is not None:
        parts += [
            "Where the time to the first token goes: ms, medians over the rounds of means, and shares.",
            stages,
        ]
    if _levels(measured, ARRIVALS):
        parts += [
            "Streams that go on while new prompts arrive. Last: our ITL P99 over theirs.",
            _mode_table(measured, titles, ARRIVALS, ARRIVAL_COLUMNS, "itl_p99_ms"),
        ]
    for kind in TEXTS:
        if _levels(measured, kind):
            parts += [
                f"One stream that writes: {kind}. Last: our tokens/s over theirs.",
                _mode_table(measured, titles, kind, BURST_COLUMNS[:4], "tokens_per_s"),
            ]
    for name in OURS:
        if name in titles:
            found = verdicts(measured, ours=name)
            rows = [_verdict_row(each) for each in found if name == "ours" or each.value is not None]
            parts += [
                f"Targets of {titles[name]}.",
                markdown_table(["target", "bound", "measured", ""], rows),
            ]
    return "\n\n".join(parts) + "\n"

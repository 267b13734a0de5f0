"""A bundle's figures as a page to read."""

from __future__ import annotations

from typing import Any

from engine.report import markdown_table

__all__ = ["summarise"]

_HEADS = [
    "streams",
    "graphs",
    "temp.",
    "tokens/s",
    "step ms",
    "P99",
    "forward span",
    "sampler span",
    "rest",
    "peak GiB",
]


def summarise(report: dict[str, Any]) -> str:
    """Lay a report out as Markdown; it may be of a run that isn't over."""
    environment = report["environment"]
    lines = ["# The engine on " + str(environment.get("gpu") or environment["processor"]), ""]
    lines += [f"- {name}: {value}" for name, value in environment.items() if value is not None]
    lines += ["", f"Run time {report.get('seconds', 0):.0f} s.", ""]
    tests = report["tests"]
    lines += [f"Tests: {tests['outcome']} ({tests['last']})" if tests else "Tests: not run", ""]
    for name, part in report["models"].items():
        lines += [f"## {name}", ""]
        if part["cells"]:
            lines += [markdown_table(_HEADS, [_row(cell) for cell in part["cells"]]), ""]
        for profile in part["kernels"]:
            lines += _profile_lines(profile)
        lines += [f"- failed: {each['what']}: {each['error']}" for each in part["failures"]]
    if report.get("skipped"):
        lines += ["", "Skipped, for there was no time: " + "; ".join(report["skipped"])]
    return "\n".join(lines).rstrip() + "\n"


def _row(cell: dict[str, Any]) -> list[str]:
    peak = cell["peak_bytes"]
    graphs = "refused" if cell["obstacle"] else cell["graphs"]
    names = ("step_ms", "step_ms_p99", "forward_span_ms", "sampler_span_ms", "rest_ms")
    times = [cell[name] for name in names]
    return [
        str(cell["streams"]),
        graphs,
        f"{cell['temperature']:g}",
        f"{cell['tokens_per_s']:,.0f}",
        *(f"{each:.2f}" for each in times),
        "-" if peak is None else f"{peak / 2**30:.1f}",
    ]


def _profile_lines(profile: dict[str, Any]) -> list[str]:
    busy = profile["busy_ms"] / profile["step_ms"]
    times = f"{profile['busy_ms']:.2f} of {profile['step_ms']:.2f} ms a step ({busy:.0%})"
    times += f", none for {profile['idle_ms']:.2f} ms"
    what = f"{profile['streams']} streams, graphs {profile['graphs']}, under the profiler"
    return [
        f"{what}: kernels run {times}; the longest:",
        "",
        *(f"- {each['ms']:.3f} ms, {each['calls']} calls: {each['name']}" for each in profile["kernels"]),
        "",
    ]

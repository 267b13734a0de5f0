"""Bars in groups as an SVG, one plot below the other; no library, so a result can be drawn anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attrs import frozen

__all__ = ["Bar", "BarPlot", "bar_charts"]

WIDTH, LEFT, RIGHT = 840, 210, 70
ROW, GAP, TOP, BOTTOM = 18, 12, 34, 16
COLOURS = ("#2563eb", "#d97706", "#059669", "#9ca3af")
STYLE = "text{font:12px sans-serif;fill:#111827}"


@frozen
class Bar:
    """One bar: its name, its value, and which group it belongs to."""

    name: str
    value: float
    group: int = 0


@frozen
class BarPlot:
    """Bars that share their scale; ``mark`` is a value to be shown, with its name."""

    title: str
    bars: Sequence[Bar]
    mark: tuple[float, str] | None = None


def bar_charts(plots: Sequence[BarPlot]) -> str:
    """Return an SVG of all plots; the bars begin at 0."""
    heights = [TOP + BOTTOM + ROW * len(plot.bars) + GAP for plot in plots]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {sum(heights)}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{sum(heights)}" fill="white"/>',
    ]
    top = 0
    for plot, height in zip(plots, heights, strict=True):
        parts += [f'<g transform="translate(0 {top})">', *_plot(plot, height), "</g>"]
        top += height
    return "\n".join([*parts, "</svg>\n"])


def _plot(plot: BarPlot, height: int) -> list[str]:
    longest = (
        max([bar.value for bar in plot.bars] + ([plot.mark[0]] if plot.mark else []), default=1.0) or 1.0
    )
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(plot.title)}</text>']
    for row, bar in enumerate(plot.bars):
        y = TOP + ROW * row
        colour = COLOURS[bar.group % len(COLOURS)]
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>')
        size = f'width="{max(1.0, bar.value * scale):.1f}" height="{ROW - 4}"'
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" {size} fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + bar.value * scale + 6:.1f}" y="{y + 12}">{bar.value:.1f}</text>')
    if plot.mark is not None:
        x = LEFT + plot.mark[0] * scale
        line = f"M{x:.1f} {TOP}V{height - BOTTOM}"
        parts.append(f'<path d="{line}" stroke="#dc2626" stroke-dasharray="5 4" fill="none"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{height - 6}">{escape(plot.mark[1])}</text>')
    return parts

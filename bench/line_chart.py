"""Lines over time as an SVG, one plot below the other; no library, so a result can be drawn anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attrs import frozen

__all__ = ["Line", "Plot", "line_charts"]

WIDTH, HEIGHT = 840, 250
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 46, 34
COLOURS = ("#2563eb", "#d97706", "#059669", "#9ca3af")
STYLE = "text{font:12px sans-serif;fill:#111827}line{stroke:#d1d5db}path{fill:none;stroke-width:1.6}"


@frozen
class Line:
    """One line: its name and its points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


@frozen
class Plot:
    """Lines that share their axes; ``mark`` is a height to be shown, with its name."""

    title: str
    lines: Sequence[Line]
    x_name: str = "seconds"
    mark: tuple[float, str] | None = None


def line_charts(plots: Sequence[Plot]) -> str:
    """Return an SVG of all plots; the heights begin at 0."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * len(plots)}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT * len(plots)}" fill="white"/>',
    ]
    for number, plot in enumerate(plots):
        parts += [f'<g transform="translate(0 {HEIGHT * number})">', *_plot(plot), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _plot(plot: Plot) -> list[str]:
    points = [point for line in plot.lines for point in line.points]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = 1.1 * max([y for _, y in points] + ([plot.mark[0]] if plot.mark else []), default=1.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / right
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (1 - y / top)

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(plot.title)}</text>']
    for tick in range(5):
        value = top * tick / 4
        _, y = place(0, value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for tick in range(6):
        x, y = place(right * tick / 5, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{right * tick / 5:.3g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(plot.x_name)}</text>')
    for index, line in enumerate(plot.lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(
            f"{'L' if at else 'M'}{x:.1f} {y:.1f}"
            for at, (x, y) in enumerate(place(*point) for point in line.points)
        )
        parts.append(f'<path d="{path}" stroke="{colour}"/>')
        parts.append(f'<rect x="{LEFT + 200 * index}" y="24" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 200 * index + 18}" y="32">{escape(line.name)}</text>')
    if plot.mark is not None:
        _, y = place(0, plot.mark[0])
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dc2626" stroke-dasharray="5 4"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">{escape(plot.mark[1])}</text>'
        )
    return parts

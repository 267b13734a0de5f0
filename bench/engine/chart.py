"""A picture of a comparison: tokens a second of each engine at each level, as bars in an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from engine.comparison import BURST, Measured, spread

__all__ = ["chart"]

WIDTH, HEIGHT = 840, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 50
COLOURS = ("#2563eb", "#93c5fd", "#d97706", "#6b7280", "#059669")
STYLE = "text{font:12px sans-serif;fill:#111827}.small{font-size:10px}line{stroke:#d1d5db}"


def _round_up(value: float) -> float:
    """Return the next multiple of a round number, so that the axis ends on one."""
    step = 50.0 if value > 100 else 10.0
    return step * (int(value / step) + 1)


def chart(measured: Sequence[Measured], titles: Mapping[str, str]) -> str:
    """Return an SVG; a bar is a median, the line on it reaches from the least round to the greatest."""
    levels = sorted({each.streams for each in measured if each.mode == BURST})
    top = _round_up(max((each.figures["tokens_per_s"] for each in measured if each.mode == BURST), default=1))
    plot_height = HEIGHT - TOP - BOTTOM
    group = (WIDTH - LEFT - RIGHT) / max(1, len(levels))
    bar = 0.8 * group / len(titles)

    def height_of(value: float) -> float:
        return TOP + plot_height * (1 - value / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style><title>tokens a second by streams at once</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        mark = top * tick / 4
        y = height_of(mark)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:.0f}</text>')
    for index, (peer, title) in enumerate(titles.items()):
        colour = COLOURS[index % len(COLOURS)]
        left = LEFT + (WIDTH - LEFT - RIGHT) / len(titles) * index
        parts.append(f'<rect x="{left:.0f}" y="16" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 18:.0f}" y="26">{escape(title)}</text>')
        for place, streams in enumerate(levels):
            value = spread(measured, peer, BURST, streams, "tokens_per_s")
            if value is None:
                continue
            x0 = LEFT + group * (place + 0.1) + bar * index
            y, middle = height_of(value.median), x0 + bar / 2
            size = f'width="{bar - 2:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
            parts.append(f'<rect x="{x0:.1f}" y="{y:.1f}" {size} fill="{colour}"/>')
            low, high = height_of(value.low), height_of(value.high)
            parts.append(f'<path d="M{middle:.1f} {low:.1f}V{high:.1f}" stroke="#111827"/>')
            where = f'x="{middle:.1f}" y="{high - 4:.1f}" text-anchor="middle"'
            parts.append(f'<text class="small" {where}>{value.median:.0f}</text>')
    for place, streams in enumerate(levels):
        x = LEFT + group * (place + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{streams}</text>')
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">streams at once; tokens/s</text></svg>'
    )
    return "\n".join(parts) + "\n"

"""The picture of a comparison."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from engine.chart import chart
from engine.comparison import Measured

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[float]:
    found = ET.fromstring(svg).iter(f"{SVG}rect")
    return [float(each.get("height", "0")) for each in found if each.get("fill", "").startswith("#")]


def test_chart_is_an_svg_with_a_bar_for_each_median() -> None:
    """Twice the tokens a second, twice the height."""
    measured = [
        Measured(peer, "burst", 8, 1, {"tokens_per_s": value}) for peer, value in (("a", 50.0), ("b", 100.0))
    ]
    _, low, _, high = bars(chart(measured, {"a": "A & B", "b": "C"}))
    assert high == 2 * low


def test_chart_is_sound_when_nothing_was_measured() -> None:
    """A run that had no bursts still leaves a file that opens."""
    assert bars(chart([], {"a": "A"})) == [12.0]

"""The picture of a comparison."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from engine.chart import WIDTH, chart
from engine.comparison import Measured
from engine.peers import PEERS

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


def test_chart_tells_all_engines_apart_within_its_width() -> None:
    """Each has a colour of its own, and its name is in the picture."""
    titles = {name: name for name in ("ours", "plain", *PEERS)}
    svg = chart([], titles)
    legend = [each for each in ET.fromstring(svg).iter(f"{SVG}rect") if each.get("height") == "12"]
    assert len({each.get("fill") for each in legend}) == len(titles)
    assert max(float(each.get("x", "0")) for each in legend) < WIDTH - 100


def test_chart_is_sound_when_nothing_was_measured() -> None:
    """A run that had no bursts still leaves a file that opens."""
    assert bars(chart([], {"a": "A"})) == [12.0]

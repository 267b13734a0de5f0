"""Rounds of figures become medians with their spread, ratios between engines, and a verdict on each target.

A ratio is taken within a round, where both engines met the same machine, and only then condensed: what slows
the machine for a minute slows both. Pure: knows neither servers nor clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from attrs import frozen

__all__ = ["OURS", "TARGETS", "Measured", "Spread", "Target", "Verdict", "ratio", "spread", "verdicts"]

BURST, ARRIVALS = "burst", "arrivals"
OURS = ("ours", "plain")
"""Our engine as it comes, and without drafts."""


@frozen
class Measured:
    """One engine's figures at one level in one round.

    Attributes:
        peer: Its name.
        mode: "burst" or "arrivals".
        streams: The level.
        round: Which round.
        figures: By name, see `measurement`.
    """

    peer: str
    mode: str
    streams: int
    round: int
    figures: dict[str, float]


@frozen
class Spread:
    """A median and what lay around it.

    Attributes:
        median: The median.
        low: The least.
        high: The greatest.
        count: How many there were.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Condense the values; None if there are none."""
        return cls(median(values), min(values), max(values), len(values)) if values else None


@frozen
class Target:
    """A bound that our engine is held to.

    Attributes:
        text: In words.
        peer: Against whom; "" for our own figures alone.
        mode: Which kind of level.
        streams: Which level.
        figure: Which figure; of ours over the peer's, or ours itself.
        least: The bound from below; None if there is none.
        most: The bound from above; None if there is none.
    """

    text: str
    peer: str
    mode: str
    streams: int
    figure: str
    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Tell whether a value is within the bounds."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@frozen
class Verdict:
    """A target and what was measured.

    Attributes:
        target: The target.
        value: The ratio or figure; None where the peer wasn't measured.
    """

    target: Target
    value: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether the median holds; None where nothing was measured."""
        return None if self.value is None else self.target.holds(self.value.median)


def _targets() -> Iterable[Target]:
    for streams, least in ((1, 1.2), (8, 1.0), (32, 1.0), (64, 0.95), (128, 0.95)):
        text = f"tokens/s at {streams}, over vLLM"
        yield Target(text, "vllm", BURST, streams, "tokens_per_s", least=least)
        yield Target(f"median ITL at {streams}, over vLLM", "vllm", BURST, streams, "itl_p50_ms", most=1.0)
        yield Target(f"ms a token at {streams}, over vLLM", "vllm", BURST, streams, "tpot_p50_ms", most=1.0)
    yield Target("TTFT at 1, over vLLM", "vllm", BURST, 1, "ttft_p50_ms", most=1.0)
    yield Target("tokens/s at 32, over Transformers", "transformers", BURST, 32, "tokens_per_s", least=2.0)
    yield Target("tokens/s at 1, over llama.cpp", "llamacpp", BURST, 1, "tokens_per_s", least=1.0)
    yield Target("tokens/s at 32, over llama.cpp", "llamacpp", BURST, 32, "tokens_per_s", least=2.0)
    for kind in ("code", "list"):
        yield Target(f"tokens/s of {kind}, over no drafts", "plain", kind, 1, "tokens_per_s", least=2.0)
    text = "ITL P99 over its median at 32 while prompts arrive"
    yield Target(text, "", ARRIVALS, 32, "itl_p99_to_p50", most=2.5)


TARGETS: tuple[Target, ...] = tuple(_targets())


def _values(
    measured: Iterable[Measured], peer: str, mode: str, streams: int, figure: str
) -> dict[int, float]:
    return {
        each.round: each.figures[figure]
        for each in measured
        if (each.peer, each.mode, each.streams) == (peer, mode, streams) and figure in each.figures
    }


def spread(measured: Iterable[Measured], peer: str, mode: str, streams: int, figure: str) -> Spread | None:
    """Condense one figure of one engine at one level over all rounds; None if it was not measured."""
    return Spread.of(list(_values(measured, peer, mode, streams, figure).values()))


def ratio(
    measured: Sequence[Measured], peer: str, mode: str, streams: int, figure: str, ours: str = "ours"
) -> Spread | None:
    """Condense our figure over a peer's, taken round by round; None where no round has both."""
    above = _values(measured, ours, mode, streams, figure)
    below = _values(measured, peer, mode, streams, figure)
    return Spread.of([above[number] / below[number] for number in sorted(above.keys() & below.keys())])


def verdicts(
    measured: Sequence[Measured], targets: Sequence[Target] = TARGETS, ours: str = "ours"
) -> list[Verdict]:
    """Hold our figures to every target; `ours` may be another setting of our engine."""
    found: dict[bool, Callable[[Target], Spread | None]] = {
        True: lambda t: ratio(measured, t.peer, t.mode, t.streams, t.figure, ours),
        False: lambda t: spread(measured, ours, t.mode, t.streams, t.figure),
    }
    against_others = [target for target in targets if target.peer != ours]
    return [Verdict(target, found[bool(target.peer)](target)) for target in against_others]


def from_json(rows: Iterable[dict[str, Any]]) -> list[Measured]:
    """Read what `attrs.asdict` made of measurements."""
    return [Measured(**row) for row in rows]

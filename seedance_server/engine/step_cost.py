"""What a step costs by its number of rows, in steps of a single row.

Up to some rows a step takes as long as its weights take to be read, so that more rows are almost free; from
there on each costs as much as the next. Where that is depends on kernels, model and machine, so it is
measured once, at start (see `step_trial.py`). How far that holds in service is for `Dearness` to say. Pure
Python.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Self

from attrs import field, frozen

__all__ = ["USUAL_COST", "StepCost"]


@frozen
class StepCost:
    """A line through measured points.

    Attributes:
        points: Rows and their cost, ascending in both, at least two; the first is (1, 1.0).

    Raises:
        ValueError: The points aren't such.
    """

    points: tuple[tuple[int, float], ...] = field()

    @points.validator
    def _check(self, _attribute: object, points: tuple[tuple[int, float], ...]) -> None:
        ascending = all(a < b and x <= y for (a, x), (b, y) in pairwise(points))
        if len(points) < 2 or points[0] != (1, 1.0) or not ascending:
            raise ValueError(f"no line of costs: {points}")

    @classmethod
    def of_seconds(cls, seconds: Mapping[int, float]) -> Self:
        """From the seconds of steps by their rows, 1 among them.

        What came out cheaper than fewer rows did was disturbed less: it costs as much as those.
        """
        points: list[tuple[int, float]] = []
        for rows in sorted(seconds):
            cost = seconds[rows] / seconds[1]
            points.append((rows, max(cost, points[-1][1]) if points else 1.0))
        return cls(tuple(points))

    def of(self, rows: int) -> float:
        """The cost of a step of ``rows`` rows; beyond the last point as from the last but one to it."""
        for (low, low_cost), (high, high_cost) in pairwise(self.points):  # noqa: B007 - the last pair goes on
            if rows <= high:
                break
        cost = low_cost + (high_cost - low_cost) * (rows - low) / (high - low)
        return min(cost, high_cost) if rows <= high else cost  # rounded up, it would fall at the next row


USUAL_COST = StepCost(((1, 1.0), (4, 1.02), (8, 1.07), (12, 1.25), (16, 1.6), (32, 3.4)))
"""Where nothing was measured: about what the native kernels do on the reference machine."""

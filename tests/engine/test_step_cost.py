import pytest
from hypothesis import given

from seedance_server.engine.step_cost import USUAL_COST, StepCost
from tests.engine_strategies import step_costs


@given(step_costs)
def test_cost_is_one_for_a_row_and_never_falls_with_more(cost):
    """What a longer step brings is divided by what it costs: a dip would be taken for a gift."""
    costs = [cost.of(rows) for rows in range(1, 70)]
    assert costs[0] == 1.0
    assert costs == sorted(costs)


@pytest.mark.parametrize(("rows", "cost"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.0), (5, 2.5), (9, 4.5)])
def test_cost_goes_from_point_to_point_and_on_behind_the_last_as_before_it(rows, cost):
    """Between what was measured lies what lies between; beyond, rows go on to cost as much."""
    assert StepCost(((1, 1.0), (3, 2.0), (4, 2.0), (6, 3.0))).of(rows) == pytest.approx(cost)


def test_cost_of_seconds_takes_a_step_that_came_out_cheaper_for_no_dearer_than_fewer_rows():
    """A measurement that was disturbed doesn't make more rows a gain."""
    cost = StepCost.of_seconds({4: 0.030, 1: 0.020, 2: 0.032})
    assert cost.points == ((1, 1.0), (2, 1.6), (4, 1.6))
    assert StepCost.of_seconds({1: 0.02, 8: 0.01}).of(8) == 1.0


@pytest.mark.parametrize(
    "points", [(), ((1, 1.0),), ((2, 1.0), (3, 2.0)), ((1, 1.0), (1, 2.0)), ((1, 1.0), (2, 0.5))]
)
def test_cost_refuses_what_is_no_line(points):
    """A table with a hole would be found out in the middle of an answer."""
    with pytest.raises(ValueError, match="no line"):
        StepCost(points)


def test_usual_cost_makes_few_rows_cheap():
    """Where nothing was measured, the first rows are taken to cost little, and many to cost much."""
    assert USUAL_COST.of(4) < 1.3
    assert USUAL_COST.of(32) > 3

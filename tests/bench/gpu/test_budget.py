from gpu.budget import Budget


def test_budget_lets_begin_what_fits_and_names_the_rest():
    """A run ends in its time, and what it left out is known."""
    now = [100.0]
    budget = Budget(60.0, clock=lambda: now[0])
    assert budget.allows("a", 60.0)
    now[0] += 50
    assert (budget.spent_s, budget.left_s) == (50, 10)
    assert not budget.allows("b", 11.0)
    assert budget.allows("c", 10.0)
    now[0] += 50
    assert budget.left_s == 0
    assert budget.skipped == ["b"]

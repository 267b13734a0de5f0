import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_server.engine.prefill_budget import LEAST_TOKENS, PrefillBudget


def cost(decodes, tokens):
    """A machine whose steps take 20 ms, 1.1 ms per decode and 0.4 ms per token of a prompt."""
    return 0.020 + 0.0011 * decodes + 0.0004 * tokens


def learned(interval_s=None, *, steps=200, seed=0):
    budget = PrefillBudget(256, interval_s)
    generator = random.Random(seed)
    for _ in range(steps):
        decodes, tokens = generator.randint(1, 64), generator.choice([0, 16, 64, 200])
        budget.note(decodes, tokens, cost(decodes, tokens))
    return budget


@pytest.mark.parametrize("decodes", [1, 8, 32, 64])
def test_budget_fills_a_step_up_to_the_interval(decodes):
    """The chunk is as long as running answers can bear, and no longer."""
    tokens = learned(0.100).tokens_beside(decodes, 1)
    assert cost(decodes, tokens) == pytest.approx(0.100, rel=0.05)


@pytest.mark.parametrize(("decodes", "prompts"), [(8, 1), (8, 8), (32, 1), (32, 16), (64, 1)])
def test_budget_without_an_interval_follows_who_waits(decodes, prompts):
    """What prompts add to a step, for all answers, is what all would wait for it without them."""
    tokens = learned().tokens_beside(decodes, prompts)
    added_s = cost(decodes, tokens) - cost(decodes, 0)
    assert added_s * decodes == pytest.approx((decodes + prompts) * cost(decodes, 0), rel=0.1)


def test_budget_without_an_interval_is_whole_where_many_wait_for_few():
    """In a burst the first answers don't hold up the prompts of all others."""
    assert learned().tokens_beside(4, 60) == 256
    assert learned(0.030).tokens_beside(4, 60) < 256, "an interval is kept, whoever waits"


def test_budget_is_whole_when_nothing_decodes():
    """A first token may come as soon as it can."""
    assert learned(0.001).tokens_beside(0, 1) == 256


def test_budget_leaves_prompts_a_little_however_slow_the_decodes_are():
    """Running answers don't starve a prompt either."""
    assert learned(0.001).tokens_beside(64, 1) == LEAST_TOKENS
    assert PrefillBudget(8, 0.001).tokens_beside(64, 1) == 8


def test_budget_is_careful_before_it_has_seen_steps():
    """The first chunks beside answers are short ones."""
    assert PrefillBudget(256, 10.0).tokens_beside(1, 1) == LEAST_TOKENS


def test_budget_follows_a_machine_that_becomes_slower():
    """Half the speed, and within some hundred steps half the tokens or less."""
    budget = learned(0.150)
    fast = budget.tokens_beside(8, 1)
    for decodes, tokens in [(8, 16), (30, 0), (20, 64)] * 40:
        budget.note(decodes, tokens, 2 * cost(decodes, tokens))
    slow = budget.tokens_beside(8, 1)
    assert 2 * cost(8, slow) == pytest.approx(0.150, rel=0.1)
    assert slow < fast / 2


def test_budget_isnt_misled_by_one_step_that_was_held_up():
    """A page fault or a busy neighbour is no property of steps."""
    budget = learned(0.150)
    before = budget.tokens_beside(8, 1)
    budget.note(30, 0, 10.0)
    assert budget.tokens_beside(8, 1) > before / 4
    for decodes, tokens in [(8, 16), (30, 0), (20, 64)] * 10:
        budget.note(decodes, tokens, cost(decodes, tokens))
    assert budget.tokens_beside(8, 1) == pytest.approx(before, rel=0.1)


def test_budget_keeps_what_a_token_costs_while_no_prompts_come():
    """A long time of decodes alone says nothing about prompts, and unlearns nothing."""
    budget = learned(0.150)
    before = budget.tokens_beside(8, 1)
    for _ in range(1000):
        budget.note(8, 0, cost(8, 0))
    assert budget.tokens_beside(8, 1) == pytest.approx(before, rel=0.05)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 400), st.floats(0, 10)), max_size=30),
    st.integers(0, 200),
    st.integers(1, 200),
)
def test_budget_stays_within_its_limits_whatever_it_sees(steps, decodes, prompts):
    """There is always progress, and never more than the limit."""
    for interval_s in (None, 0.05):
        budget = PrefillBudget(100, interval_s)
        for decodes_then, tokens, seconds in steps:
            budget.note(decodes_then, tokens, seconds)
        assert 1 <= budget.tokens_beside(decodes, prompts) <= 100

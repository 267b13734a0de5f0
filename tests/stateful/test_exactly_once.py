"""Exactly once over the real protocol cores and journal rules, in histories that nobody would think of."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.stateful.exactly_once import ExactlyOnce
from tests.stateful.mutants import MUTANTS, Mutant, catch

TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(stateful_step_count=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.quick], ids=lambda mutant: mutant.name
)
def test_machine_catches_a_seeded_bug(mutant: Mutant):
    """A machine that can't fail proves nothing; `nox -s mutants` plays those that take longer as well."""
    caught = catch(mutant, shrink=False)
    assert caught is not None
    assert caught.example, "the history that shows it"

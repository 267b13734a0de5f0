import random

import pytest

from seedance_server.engine.dearness import Dearness


def _serve(dearness, *, dearer, steps=200, held_up=0.0):
    """Steps with drafts and without in turns, some held up for long; how dear rows are found to be."""
    dice = random.Random(1)
    for _ in range(steps):
        for longer_by in (0.0, 0.2):
            seconds = 0.02 * (1 + dearer * longer_by) * dice.uniform(0.98, 1.02)
            dearness.note(4, longer_by, seconds * (10 if dice.random() < held_up else 1))
    return dearness.factor


@pytest.mark.parametrize("dearer", [1.0, 2.0, 4.0])
def test_dearness_finds_how_much_longer_drafts_make_a_step(dearer):
    """Whatever was measured at start, what steps take in service counts."""
    assert _serve(Dearness(), dearer=dearer) == pytest.approx(dearer, rel=0.3)


def test_dearness_of_steps_that_are_held_up_is_hardly_another():
    """What took ten times as long took longer, no more: one step in ten says nothing of rows."""
    assert _serve(Dearness(), dearer=2.0, held_up=0.1) == pytest.approx(2.0, rel=0.4)


def test_dearness_comes_back_when_rows_are_cheap_again():
    """What else ran has ended; but they are never taken to be cheaper than measured."""
    dearness = Dearness()
    assert _serve(dearness, dearer=50.0) == 32.0
    assert _serve(dearness, dearer=0.2) == 1.0


@pytest.mark.parametrize(("answers", "others"), [(3, 0), (4, 20)])
def test_dearness_compares_steps_of_the_same_company_and_time_only(answers, others):
    """Three answers take less than four, and a step of long ago was of shorter texts."""
    dearness = Dearness()
    dearness.note(answers, 0.0, 0.010)
    for _ in range(others):
        dearness.note(5, 0.2, 0.5)
    dearness.note(4, 0.2, 0.5)
    assert dearness.factor == 1.0


def test_dearness_wants_one_step_in_99_without_drafts_where_all_have_some():
    """Without any, nothing would be known of rows; more of them would cost what drafts save."""
    dearness = Dearness()
    plain = []
    for step in range(1000):
        plain += [step] * dearness.wants_plain
        dearness.note(4, 0.0 if dearness.wants_plain else 0.2, 0.024)
    assert plain == list(range(98, 1000, 99))


def test_dearness_asks_no_more_often_where_what_it_wants_says_nothing():
    """A prompt that came beside it makes it useless: the next one is as far off as ever."""
    dearness = Dearness()
    wanted = 0
    for _ in range(990):
        wanted += dearness.wants_plain
        dearness.note(0, 0.0 if dearness.wants_plain else 0.2, 0.024)
    assert wanted == 10


@pytest.mark.parametrize(("answers", "longer_by"), [(4, 0.0), (0, 0.0), (0, 0.2), (4, 0.2)])
def test_dearness_fades_where_steps_say_nothing(answers, longer_by):
    """Without drafts, beside prompts, with none to be held against: nothing stands for ever."""
    dearness = Dearness()
    dearness.factor = 32.0
    for _ in range(7000):
        dearness.note(answers, longer_by, 0.02)
    assert dearness.factor == 1.0

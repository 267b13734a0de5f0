"""Times of calls and of work by itself."""

from __future__ import annotations

import pytest

from engine.stopwatch import Stopwatch, milliseconds_of


def test_stopwatch_adds_up_calls_and_begins_anew() -> None:
    """Parts are those of one step; a call that fails is timed as well."""
    watch = Stopwatch()
    assert watch.around("a", lambda x, y: x + y)(1, y=2) == 3
    with pytest.raises(ZeroDivisionError):
        watch.around("b", lambda: 1 / 0)()
    assert set(watch.take()) == {"a", "b"}
    assert watch.take() == {}


def test_first_pass_of_some_work_is_not_counted() -> None:
    """What is set up once is not what a step takes."""
    passes: list[int] = []
    assert milliseconds_of(lambda: passes.append(1), repeats=3) >= 0
    assert len(passes) == 4

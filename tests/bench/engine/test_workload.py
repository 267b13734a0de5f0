"""What every engine is asked."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.workload import burst, poisson_times, prompt


def words_and_start(text: str) -> list[int]:
    """A tokenizer with a start token and two tokens for each word of more than six letters."""
    return [2, *(number for word in text.split() for number in range(1 + (len(word) > 6)))]


def test_prompt_has_the_wanted_length_in_tokens() -> None:
    """Engines are compared at the same work, which is counted in tokens."""
    assert {len(words_and_start(prompt(f"p{n}", 60, words_and_start))) for n in range(50)} == {60}


def test_prompt_is_the_same_for_the_same_seed_and_differs_early_for_another() -> None:
    """Rounds repeat, and no prompt has a beginning that a prefix cache could know."""
    prompts = [prompt(f"burst {n}", 60, words_and_start) for n in range(100)]
    assert prompts[7] == prompt("burst 7", 60, words_and_start)
    assert len({tuple(text.split()[:6]) for text in prompts}) == 100


def test_prompt_gives_up_when_no_text_has_that_length() -> None:
    """A tokenizer that never comes out right is an error, not a hang."""
    with pytest.raises(ValueError, match="60 tokens"):
        prompt("p", 60, lambda text: [0] * (2 * len(text.split()) + 1))


def test_burst_has_a_request_for_each_stream() -> None:
    """A level of N is N different prompts at once."""
    requests = burst("round 1", 8, 20, 48, words_and_start)
    assert len({request.prompt for request in requests}) == 8
    assert {request.max_tokens for request in requests} == {48}


def test_poisson_times_come_at_their_rate_without_rhythm() -> None:
    """Arrivals are those of independent users: at their rate, with gaps that vary as much as they last."""
    times = poisson_times("t", 4.0, 1000.0)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert len(times) == pytest.approx(4000, rel=0.1)
    assert deviation / mean == pytest.approx(1, rel=0.1)
    assert times == sorted(times)
    assert times[-1] < 1000
    assert times == poisson_times("t", 4.0, 1000.0)
